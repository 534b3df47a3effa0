// A GGUF file from any bytes: tensors in the file, blocks read without harm, a Llama model's configuration, or an Error.
#include <cstring>
#include <optional>
#include <vector>

#include "as_file.h"
#include "io/gguf_codes.h"
#include "io/gguf_file.h"
#include "methods/gguf_llama.h"
#include "narrow/error.h"

namespace {

void read_blocks(const narrow::io::GgufTensor& tensor, const std::uint8_t* data) {
  const std::vector<std::uint8_t> blocks(data + tensor.begin, data + tensor.begin + tensor.bytes);
  std::vector<float> values(static_cast<std::size_t>(narrow::element_count(tensor.shape)));
  narrow::io::decode_blocks(*tensor.type, blocks, values);
  const std::optional<narrow::Scheme> scheme = narrow::io::scheme_of_blocks(*tensor.type);
  if (tensor.shape.size() != 2 || !scheme) return;
  std::vector<std::uint8_t> again(blocks.size());
  try {
    const narrow::QuantizedTensor q = narrow::io::quantized_of_blocks(*tensor.type, blocks, tensor.shape);
    narrow::io::put_blocks(q, *narrow::io::blocks_of_scheme(*scheme), again);
  } catch (const narrow::InvalidArgument&) {  // a scale that is not finite
    return;
  }
  if (again != blocks) std::abort();
}

/// What is read is written again with the same tensors.
void check_writer(const narrow::io::GgufHeader& header) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 16;
  auto pairs = header.metadata;
  std::erase_if(pairs, [](const auto& pair) { return pair.first == "general.alignment"; });  // the writer has its own
  const narrow::io::GgufHeader layout = narrow::io::layout_gguf(pairs, header.tensors);
  if (layout.file_bytes > kMostBytes) return;
  std::string bytes = layout.text;
  bytes.resize(static_cast<std::size_t>(layout.file_bytes));
  const narrow::io::FileReader reader(narrow::fuzz::as_file(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  narrow::io::GgufHeader again;
  try {
    again = narrow::io::read_gguf(reader);
  } catch (const narrow::Error&) {
    std::abort();
  }
  if (again.metadata.size() != pairs.size() || again.tensors.size() != header.tensors.size()) std::abort();
  for (std::size_t i = 0; i < again.tensors.size(); ++i)
    if (again.tensors[i].name != header.tensors[i].name || again.tensors[i].shape != header.tensors[i].shape) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::io::FileReader reader(narrow::fuzz::as_file(data, size));
    const narrow::io::GgufHeader header = narrow::io::read_gguf(reader);
    for (const narrow::io::GgufTensor& tensor : header.tensors) {
      if (tensor.begin > size || tensor.bytes > size - tensor.begin) std::abort();
      read_blocks(tensor, data);
    }
    check_writer(header);
    narrow::config_of(header, reader.path());
  } catch (const narrow::CorruptFile&) {
  } catch (const narrow::Unsupported&) {
  }
  return 0;
}
