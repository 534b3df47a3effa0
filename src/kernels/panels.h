#pragma once
/// The panel layout of prepared weights: a map of codes to 32-bit lanes, with its inverse.
///
/// 64 outputs form a panel, 32 consecutive k a group. A group of b-bit codes is b vectors of 64 lanes of 32 bits, lane = output:
/// decoding moves nothing across lanes, a broadcast activation meets all outputs, and a panel is one stream. Within a lane
///   b in {8, 16, 32}:  vector v holds the codes k = v * 32/b + j at bits b*j;
///   b = 4:             vector v holds the codes k = 8v + j, the first four in the low halves of bytes, the others in the high ones: bytes
///                      of codes are in the order of k, and a scale of 16 k concerns whole vectors;
///   b in {1, 2, 3, 5, 6}: the low half of a lane holds k = 0..15, the high half k = 16..31, each as a word of 16 bits: vector v holds
///                      the codes k = v * c + j at bits b*j of the word, c = 16 / b. One look-up by words decodes k and k + 16.
///     b = 3:           c = 4, j at bit 8 (j / 2) + 3 (j % 2): a look-up of bytes by six bits meets two codes. Bits 6 and 7 of the bytes
///                      are such that lane 0 >> 6 ^ lane 1 >> 4 ^ lane 2 >> 2 is the lane of a fourth vector, of the codes 12..15;
///     b = 5:           c * b = 15: bit 15 of vector v's word is bit v of code 15;
///     b = 6:           c * b = 12: bits 12..15 of vectors 0, 1, 2 hold the codes 12 and 13, of vectors 3, 4, 5 the codes 14 and 15:
///                      vector 0 bits 0..3 of the first, vector 2 bits 0..3 of the second, vector 1 bits 4, 5 of the first, then of the
///                      second.
/// Codes of 7 bits are stored in 8, of 9 to 15 bits in 16, aligned to the top; signed integers in offset binary.
/// Memory: [panel][group][vector][lane], outputs padded to a multiple of 64, k to a multiple of 32, with zero bits.
/// Scales and zero points: [panel][k block][lane], in the scheme's own storage, zero in the padding.

#include <algorithm>
#include <cstdint>

#include "narrow/scheme.h"

namespace narrow::panels {

inline constexpr std::int64_t kLanes = 64;
inline constexpr std::int64_t kGroup = 32;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }
constexpr std::int64_t padded_n(std::int64_t n) { return round_up(n, kLanes); }
constexpr std::int64_t padded_k(std::int64_t k) { return round_up(k, kGroup); }

/// Bits that a code takes in a panel.
constexpr int stored_bits(const Format& format) {
  if (format.bits == 7) return 8;
  return format.bits > 8 && format.bits < 16 ? 16 : format.bits;
}

/// The code as stored, and back.
constexpr std::uint32_t to_stored(const Format& format, std::uint32_t code) {
  if (format.is_integer() && format.is_signed) return code ^ (1u << (format.bits - 1));
  return format.is_float() ? code << (stored_bits(format) - format.bits) : code;
}
constexpr std::uint32_t from_stored(const Format& format, std::uint32_t stored) {
  if (format.is_integer() && format.is_signed) return stored ^ (1u << (format.bits - 1));
  return format.is_float() ? stored >> (stored_bits(format) - format.bits) : stored;
}

/// Where bit `bit` of code kk of a group lies: in which vector (of 3 bits also the fourth), at which bit of the lane.
struct BitPlace {
  int vector, bit;
};
constexpr BitPlace place_of(int kk, int bits, int bit) {
  if (bits >= 8) return {kk / (32 / bits), bits * (kk % (32 / bits)) + bit};
  if (bits == 4) return {kk / 8, 8 * (kk % 4) + 4 * (kk % 8 / 4) + bit};
  const int half = kk / 16, i = kk % 16, per = 16 / bits;
  if (bits == 3) return {i / 4, 16 * half + 8 * (i % 4 / 2) + 3 * (i % 2) + bit};
  if (i < per * bits) return {i / per, 16 * half + bits * (i % per) + bit};
  if (bits != 6) return {bit, 16 * half + 15};
  const int first = (i - 12) / 2 * 3, second = i % 2;
  if (bit < 4) return {first + 2 * second, 16 * half + 12 + bit};
  return {first + 1, 16 * half + 12 + 2 * second + bit - 4};
}
/// Whether the bits of a code lie side by side.
constexpr bool is_whole(int kk, int bits) { return bits >= 8 || kk % 16 < 16 / bits * bits; }

/// Of 3 bits: flips `word`, where bits 0..5 of bytes are codes, in vector 0..3, and whatever keeps the others as they are.
constexpr void flip_codes(std::uint32_t* lanes, int vector, std::uint32_t word) {
  if (vector < 3) lanes[vector * kLanes] ^= word;
  const std::uint32_t fourth = vector < 3 ? word >> (6 - 2 * vector) : word;
  for (int v = 0; v < 3; ++v) lanes[v * kLanes] ^= (fourth & 0x03030303u << 2 * v) << (6 - 2 * v);
}
constexpr std::uint32_t fourth_lane(const std::uint32_t* lanes) { return lanes[0] >> 6 ^ lanes[kLanes] >> 4 ^ lanes[2 * kLanes] >> 2; }

/// Writes code kk (0..31) of an output into the group's lanes, where it is 0; `lanes` points at the output's lane of vector 0, vectors are
/// 64 apart.
constexpr void write_stored(std::uint32_t* lanes, int kk, int bits, std::uint32_t stored) {
  if (bits == 3) {
    const BitPlace place = place_of(kk, bits, 0);
    return flip_codes(lanes, place.vector, stored << place.bit);
  }
  if (is_whole(kk, bits)) {
    const BitPlace place = place_of(kk, bits, 0);
    lanes[place.vector * kLanes] |= stored << place.bit;
    return;
  }
  for (int bit = 0; bit < bits; ++bit) {
    const BitPlace place = place_of(kk, bits, bit);
    lanes[place.vector * kLanes] |= ((stored >> bit) & 1u) << place.bit;
  }
}

constexpr std::uint32_t read_stored(const std::uint32_t* lanes, int kk, int bits) {
  const std::uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1u;
  if (bits == 3) {
    const BitPlace place = place_of(kk, bits, 0);
    return ((place.vector < 3 ? lanes[place.vector * kLanes] : fourth_lane(lanes)) >> place.bit) & mask;
  }
  if (is_whole(kk, bits)) {
    const BitPlace place = place_of(kk, bits, 0);
    return (lanes[place.vector * kLanes] >> place.bit) & mask;
  }
  std::uint32_t stored = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const BitPlace place = place_of(kk, bits, bit);
    stored |= ((lanes[place.vector * kLanes] >> place.bit) & 1u) << bit;
  }
  return stored;
}

/// The first lane word of output n, group of k.
constexpr std::int64_t lane_index(std::int64_t n, std::int64_t k, std::int64_t total_k, int bits) {
  const std::int64_t groups = padded_k(total_k) / kGroup;
  return ((n / kLanes) * groups + k / kGroup) * bits * kLanes + n % kLanes;
}

/// Blocks of k that share a scale, padding included: 1 where the scale does not vary.
constexpr std::int64_t k_blocks(const ScaleGrid& grid, std::int64_t k) {
  return grid.whole_tensor || grid.cols <= 1 ? 1 : (padded_k(k) + grid.tile_cols - 1) / grid.tile_cols;
}
/// The index of the scale of (n, k block) among the panels' scales.
constexpr std::int64_t scale_index(std::int64_t n, std::int64_t block, std::int64_t blocks) {
  return ((n / kLanes) * blocks + block) * kLanes + n % kLanes;
}

/// Whether the scales of a matrix fit the panels: constant along k, or in blocks of 16 or of a multiple of 32.
constexpr bool fits(const ScaleGrid& grid) {
  return grid.whole_tensor || grid.cols <= 1 || grid.tile_cols == 16 || grid.tile_cols % kGroup == 0;
}

}  // namespace narrow::panels
