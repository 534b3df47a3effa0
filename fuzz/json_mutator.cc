// The hooks by which libFuzzer and our driver change inputs, for targets that read JSON.

#include "json_mutator.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return narrow::fuzz::mutate_json(data, size, most, seed);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size, const std::uint8_t* second,
                                                 std::size_t second_size, std::uint8_t* out, std::size_t most, unsigned seed) {
  return narrow::fuzz::cross_json(first, first_size, second, second_size, out, most, seed);
}
