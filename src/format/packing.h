#pragma once
/// Bit packing of any width 1..16: element 0 in the lowest bits of byte 0, little end first. Host and device.

#include <cstddef>
#include <cstdint>

#include "narrow/format.h"

namespace narrow {

/// Bytes that `count` codes of `bits` bits take.
NARROW_HOST_DEVICE constexpr std::size_t packed_bytes(std::int64_t count, int bits) {
  return static_cast<std::size_t>((count * bits + 7) / 8);
}

/// Reads code `index`; touches no byte beyond the ones that hold it.
NARROW_HOST_DEVICE constexpr std::uint32_t read_code(const std::uint8_t* packed, std::int64_t index, int bits) {
  const std::int64_t first = index * bits;
  const std::int64_t last_byte = (first + bits - 1) / 8;
  std::uint32_t window = 0;
  for (std::int64_t byte = last_byte; byte >= first / 8; --byte) window = (window << 8) | packed[byte];
  return (window >> (first % 8)) & ((bits >= 32 ? 0u : (1u << bits)) - 1u);
}

/// Ors code `index` into memory that was zero there.
NARROW_HOST_DEVICE constexpr void write_code(std::uint8_t* packed, std::int64_t index, int bits, std::uint32_t code) {
  const std::int64_t first = index * bits;
  std::uint64_t window = static_cast<std::uint64_t>(code) << (first % 8);
  for (std::int64_t byte = first / 8; window != 0; ++byte, window >>= 8)
    packed[byte] = static_cast<std::uint8_t>(packed[byte] | (window & 0xFFu));
}

/// Eight codes, one per byte of `bytes`, squeezed into the low 8 * bits bits: in three steps the upper one of
/// every pair of neighbours moves down to the lower one.
NARROW_HOST_DEVICE constexpr std::uint64_t pack_eight(std::uint64_t bytes, int bits) {
  const auto low = [](int width, std::uint64_t repeated) { return ((std::uint64_t{1} << width) - 1u) * repeated; };
  const int gap = 8 - bits;
  std::uint64_t x = bytes;
  x = (x & low(bits, 0x0001000100010001u)) | ((x & low(bits, 0x0100010001000100u)) >> gap);
  x = (x & low(2 * bits, 0x0000000100000001u)) | ((x & low(2 * bits, 0x0001000000010000u)) >> (2 * gap));
  return (x & low(4 * bits, 0x0000000000000001u)) | ((x & low(4 * bits, 0x0000000100000000u)) >> (4 * gap));
}

/// The inverse: the low 8 * bits bits spread to one code per byte; of every pair of neighbours the upper one moves.
NARROW_HOST_DEVICE constexpr std::uint64_t unpack_eight(std::uint64_t packed, int bits) {
  const auto low = [](int width, std::uint64_t repeated) { return ((std::uint64_t{1} << width) - 1u) * repeated; };
  const int gap = 8 - bits;
  std::uint64_t x = packed;
  x = (x & low(4 * bits, 0x0000000000000001u)) | ((x << (4 * gap)) & low(4 * bits, 0x0000000100000000u));
  x = (x & low(2 * bits, 0x0000000100000001u)) | ((x << (2 * gap)) & low(2 * bits, 0x0001000000010000u));
  return (x & low(bits, 0x0001000100010001u)) | ((x << gap) & low(bits, 0x0100010001000100u));
}

static_assert(pack_eight(0x0102030405060708u, 4) == 0x12345678u);
static_assert(unpack_eight(0x12345678u, 4) == 0x0102030405060708u);
static_assert(unpack_eight(pack_eight(0x3F013F043E203F00u, 6), 6) == 0x3F013F043E203F00u);
static_assert(pack_eight(0xFF01FF02FE03FF00u, 8) == 0xFF01FF02FE03FF00u);

}  // namespace narrow
