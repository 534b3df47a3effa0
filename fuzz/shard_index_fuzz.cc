// An index over shards from any text: plain file names alone, or CorruptFile.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/checkpoint_directory.h"
#include "json_mutator.h"
#include "narrow/error.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return narrow::fuzz::mutate_json(data, size, most, seed);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size, const std::uint8_t* second,
                                                 std::size_t second_size, std::uint8_t* out, std::size_t most, unsigned seed) {
  return narrow::fuzz::cross_json(first, first_size, second, second_size, out, most, seed);
}

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
