// An index over shards from any text: plain file names alone, or CorruptFile.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/checkpoint_directory.h"
#include "narrow/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::io::ShardIndex index = narrow::io::parse_index({reinterpret_cast<const char*>(data), size}, "index");
    for (const auto& [tensor, file] : index.weight_map)
      if (file.find('/') != std::string::npos || file.starts_with(".")) std::abort();
    if (narrow::io::parse_index(narrow::io::print_index(index), "again").weight_map != index.weight_map) std::abort();
  } catch (const narrow::CorruptFile&) {
  }
  return 0;
}
