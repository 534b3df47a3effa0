#pragma once
/// Prepared MSFP codes as pairs of bf16. All values are halved: 2^e then never overflows on the way, and 2^(e - 7) is a bf16, so that
///   half a value = (2^7 + magnitude) * 2^(e - 7) - 2^e     (of 4-bit codes 2^3 and e - 3)
/// is one exact fma. Four codes of a box, 4q .. 4q + 3, give the pairs (4q, 4q + 2) and (4q + 1, 4q + 3), which need no byte permutation; a
/// decoded box is the four first pairs and then the four second ones. Both operands of a product have the same order.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/msfp_product.h"

namespace narrow::cuda {

struct MsfpFactors {
  std::uint32_t scale, minus;  ///< 2^(e - 7) or 2^(e - 3), and -2^e, in both halves
};

/// Of box `box` (0 .. 3) of a word of exponents.
template <int kBits>
__device__ inline MsfpFactors msfp_factors(std::uint32_t exponents, int box) {
  const std::uint32_t moved = box == 3 ? exponents >> 1 : exponents << (23 - 8 * box);
  const std::uint32_t minus = (moved & 0x7F800000u) | 0x80000000u;
  constexpr float kRatio = kBits == 8 ? -0x1p-7f : -0x1p-3f;
  const std::uint32_t scale = __float_as_uint(__fmul_rn(__uint_as_float(minus), kRatio));
  return {__byte_perm(scale, scale, 0x3232), __byte_perm(minus, minus, 0x3232)};
}

__device__ inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

struct MsfpPairs {
  std::uint32_t first, second;
};

/// Four codes: the bytes of a word, or the nibbles of its low half.
template <int kBits>
__device__ inline MsfpPairs msfp_pairs(std::uint32_t codes, const MsfpFactors& f) {
  if constexpr (kBits == 8) {
    const std::uint32_t first = (codes & 0x007F007Fu) | 0x43004300u, second = ((codes >> 8) & 0x007F007Fu) | 0x43004300u;
    return {fma_bf16x2(first, f.scale, f.minus) ^ ((codes << 8) & 0x80008000u),
            fma_bf16x2(second, f.scale, f.minus) ^ (codes & 0x80008000u)};
  } else {
    const std::uint32_t x = __byte_perm(codes, 0u, 0x4140);
    const std::uint32_t first = ((x << 4) & 0x00700070u) | 0x41004100u, second = (x & 0x00700070u) | 0x41004100u;
    return {fma_bf16x2(first, f.scale, f.minus) ^ ((x << 12) & 0x80008000u),
            fma_bf16x2(second, f.scale, f.minus) ^ ((x << 8) & 0x80008000u)};
  }
}

/// A box as it lies in memory.
struct PackedBox {
  uint4 codes;  ///< of 4 bits: x and y alone
  std::uint32_t exponent;
};

template <int kBits>
__device__ inline PackedBox load_box(const MsfpView& v, std::int64_t row, int box) {
  const std::uint8_t* from = v.codes + row * v.pitch() + box * (kMsfpBox * kBits / 8);
  PackedBox packed{};
  if constexpr (kBits == 8) {
    packed.codes = __ldg(reinterpret_cast<const uint4*>(from));
  } else {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
    packed.codes = {words.x, words.y, 0u, 0u};
  }
  packed.exponent = (__ldg(v.exponents + box / 4 * v.exponent_rows() + row) >> (box % 4 * 8)) & 255u;
  return packed;
}

/// The box as 16 bf16.
template <int kBits>
__device__ inline void store_decoded(const PackedBox& packed, uint4* to) {
  const MsfpFactors factors = msfp_factors<kBits>(packed.exponent, 0);
  const uint4& c = packed.codes;
  const std::uint32_t codes[4] = {c.x, kBits == 8 ? c.y : c.x >> 16, kBits == 8 ? c.z : c.y, kBits == 8 ? c.w : c.y >> 16};
  MsfpPairs pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = msfp_pairs<kBits>(codes[i], factors);
  to[0] = {pairs[0].first, pairs[1].first, pairs[2].first, pairs[3].first};
  to[1] = {pairs[0].second, pairs[1].second, pairs[2].second, pairs[3].second};
}

/// Box number `index` of a prepared matrix, row by row.
__device__ inline void decode_box(const MsfpView& v, std::int64_t index, uint4* decoded) {
  const std::int64_t boxes = v.depth / kMsfpBox, row = index / boxes;
  const int box = static_cast<int>(index - row * boxes);
  if (v.bits == 8)
    store_decoded<8>(load_box<8>(v, row, box), decoded + index * 2);
  else
    store_decoded<4>(load_box<4>(v, row, box), decoded + index * 2);
}

/// kMsfpPanel boxes from number `first` on by one warp, four loads of a lane in flight at a time.
template <int kBits>
__device__ inline void decode_chunk(const MsfpView& v, std::int64_t first, int lane, uint4* decoded) {
  constexpr int kAtOnce = 4;
  const int boxes = static_cast<int>(v.depth / kMsfpBox);
  std::int64_t row = (first + lane) / boxes;
  int box = static_cast<int>(first + lane - row * boxes);
#pragma unroll 1
  for (int done = 0; done < kMsfpPanel; done += 32 * kAtOnce) {
    PackedBox packed[kAtOnce];
    std::int64_t at[kAtOnce];  // -1 beyond the last row
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      at[i] = row < v.rows ? row * boxes + box : -1;
      packed[i] = row < v.rows ? load_box<kBits>(v, row, box) : PackedBox{};
      for (box += 32; box >= boxes; box -= boxes) ++row;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (at[i] >= 0) store_decoded<kBits>(packed[i], decoded + at[i] * 2);
  }
}

}  // namespace narrow::cuda
