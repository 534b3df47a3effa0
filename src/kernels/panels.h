#pragma once
/// The panel layout of prepared weights: a map of codes to 32-bit lanes, with its inverse.
///
/// 64 outputs form a panel, 32 consecutive k a group. A group of b-bit codes is b vectors of 64 lanes of 32 bits, lane = output:
/// decoding moves nothing across lanes, a broadcast activation meets all outputs, and a panel is one stream. Within a lane
///   b in {1, 2, 4, 8, 16, 32}:  vector v holds the codes k = v * 32/b + j at bits b*j;
///   b in {3, 5, 6}:             vector v holds 30/b codes in its low 30 bits; the top two bits of all vectors, vector 0 highest,
///                               are code 31 followed by code 30.
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

constexpr bool has_spare_bits(int bits) { return bits == 3 || bits == 5 || bits == 6; }
constexpr int codes_per_lane(int bits) { return has_spare_bits(bits) ? 30 / bits : 32 / bits; }

/// Ors code kk (0..31) of an output into the group's lanes; `lanes` points at the output's lane of vector 0, vectors are 64 apart.
constexpr void write_stored(std::uint32_t* lanes, int kk, int bits, std::uint32_t stored) {
  const int per = codes_per_lane(bits);
  if (!has_spare_bits(bits) || kk < 30) {
    lanes[kk / per * kLanes] |= stored << (bits * (kk % per));
    return;
  }
  for (int bit = 0; bit < bits; ++bit) {
    const int position = (kk - 30) * bits + bit;
    lanes[(bits - 1 - position / 2) * kLanes] |= ((stored >> bit) & 1u) << (30 + position % 2);
  }
}

constexpr std::uint32_t read_stored(const std::uint32_t* lanes, int kk, int bits) {
  const int per = codes_per_lane(bits);
  const std::uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1u;
  if (!has_spare_bits(bits) || kk < 30) return (lanes[kk / per * kLanes] >> (bits * (kk % per))) & mask;
  std::uint32_t stored = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int position = (kk - 30) * bits + bit;
    stored |= ((lanes[(bits - 1 - position / 2) * kLanes] >> (30 + position % 2)) & 1u) << bit;
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
