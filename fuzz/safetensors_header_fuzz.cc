// A whole safetensors file from any bytes: a header whose ranges tile the file, or CorruptFile.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/safetensors_header.h"
#include "io/safetensors_writer.h"
#include "narrow/error.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// What is read is written again with the same tensors.
void check_writer(const narrow::io::SafetensorsHeader& header) {
  const narrow::io::SafetensorsLayout layout = narrow::io::layout_safetensors(header.tensors, header.metadata);
  const std::string_view json = std::string_view(layout.header).substr(narrow::io::kLengthBytes);
  const narrow::io::SafetensorsHeader again = narrow::io::parse_safetensors_header(json, layout.file_bytes, "again");
  require(again.metadata == header.metadata && again.tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < again.tensors.size(); ++i)
    require(again.tensors[i].name == header.tensors[i].name && again.tensors[i].shape == header.tensors[i].shape &&
            again.tensors[i].dtype == header.tensors[i].dtype);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < narrow::io::kLengthBytes) return 0;
  try {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    const std::uint64_t length = narrow::io::checked_header_length(file.first<narrow::io::kLengthBytes>(), size, "file");
    const std::string_view json(reinterpret_cast<const char*>(data) + narrow::io::kLengthBytes, length);
    const narrow::io::SafetensorsHeader header = narrow::io::parse_safetensors_header(json, size, "file");
    std::uint64_t bytes = header.header_bytes;
    for (const narrow::TensorInfo& info : header.tensors) {
      require(info.begin >= header.header_bytes && info.begin <= info.end && info.end <= size && !info.name.empty());
      bytes += info.byte_size();
    }
    require(bytes == size);
    check_writer(header);
  } catch (const narrow::CorruptFile&) {
  }
  return 0;
}
