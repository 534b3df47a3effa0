// Mutations of a whole safetensors file.
#include <cstdint>
#include <cstring>
#include <string>

#include "io/safetensors_header.h"
#include "json_mutator.h"

/// Mutates the header alone and gives it a right length, nine times of ten; otherwise any byte.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  constexpr std::size_t kLength = narrow::io::kLengthBytes;
  std::uint64_t length = 0;
  if (size > kLength) std::memcpy(&length, data, kLength);
  if (seed % 10 == 0 || size <= kLength || length > size - kLength) return LLVMFuzzerMutate(data, size, most);
  const std::string rest(reinterpret_cast<const char*>(data) + kLength + length, size - kLength - length);
  const std::size_t room = most - kLength - rest.size();
  length = narrow::fuzz::mutate_json(data + kLength, length, room, seed);
  std::memcpy(data, &length, kLength);
  std::memcpy(data + kLength + length, rest.data(), rest.size());
  return kLength + length + rest.size();
}
