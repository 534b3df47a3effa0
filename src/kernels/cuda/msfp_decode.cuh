#pragma once
/// Prepared MSFP codes as pairs of bf16. All values are halved: 2^e then never overflows on the way, and 2^(e - 7) is a bf16, so that
///   half a value = (2^7 + magnitude) * 2^(e - 7) - 2^e     (of 4-bit codes 2^3 and e - 3)
/// is one exact fma. Four codes of a box, 4q .. 4q + 3, give the pairs (4q, 4q + 2) and (4q + 1, 4q + 3), which need no byte permutation;
/// 64 decoded columns are the first pairs of their four boxes and then the second ones. Both operands of a product have the same order.

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
  uint4 codes;              ///< of 4 bits: x and y alone
  std::uint32_t exponents;  ///< of its 64 columns
};

/// The box as 16 bf16, number `box` of its 64 columns: its first pairs to *to, its second ones 64 bytes further.
template <int kBits>
__device__ inline void store_decoded(const PackedBox& packed, int box, uint4* to) {
  const MsfpFactors factors = msfp_factors<kBits>(packed.exponents >> (box * 8), 0);
  const uint4& c = packed.codes;
  const std::uint32_t codes[4] = {c.x, kBits == 8 ? c.y : c.x >> 16, kBits == 8 ? c.z : c.y, kBits == 8 ? c.w : c.y >> 16};
  MsfpPairs pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = msfp_pairs<kBits>(codes[i], factors);
  to[0] = {pairs[0].first, pairs[1].first, pairs[2].first, pairs[3].first};
  to[4] = {pairs[0].second, pairs[1].second, pairs[2].second, pairs[3].second};
}

/// Where row `row` of B lies, decoded ("dealt"). wgmma gives neighbouring pairs of columns of D to the four lanes of a quad in turn; with
/// the rows 32g + 8q + 2i + e (q, i < 4, e < 2) of B at 32g + 8i + 2q + e, lane q has the eight columns from 32g + 8q on instead.
__device__ inline int dealt_row(int row) { return (row & ~31) | (row / 2 % 4 * 8) | (row / 8 % 4 * 2) | row % 2; }

/// Chunk number `chunk` along k of kMsfpRowsAtOnce rows from `first` on, by one warp: a lane has one box of every other row. All loads come
/// first and none has a condition, so that they are under way together; rows beyond the last are the last once more.
template <int kBits>
__device__ inline void decode_rows(const MsfpView v, int first, int chunk, int lane, bool dealt, uint4* decoded) {
  constexpr int kLanes = kMsfpChunk / kMsfpBox, kStep = 32 / kLanes, kCount = kMsfpRowsAtOnce / kStep;
  const int box = chunk * kLanes + lane % kLanes, boxes = static_cast<int>(v.depth / kMsfpBox), last = static_cast<int>(v.rows) - 1;
  if (box >= boxes || first > last) return;
  const std::int64_t pitch = v.pitch();
  const std::uint8_t* const codes = v.codes + box * (kMsfpBox * kBits / 8);
  const std::uint32_t* const exponents = v.exponents + box / 4 * v.exponent_rows();
  PackedBox packed[kCount];
  int rows[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    rows[i] = min(first + lane / kLanes + i * kStep, last);
    packed[i].exponents = __ldg(exponents + rows[i]);
    if constexpr (kBits == 8) {
      packed[i].codes = __ldg(reinterpret_cast<const uint4*>(codes + rows[i] * pitch));
    } else {
      const uint2 words = __ldg(reinterpret_cast<const uint2*>(codes + rows[i] * pitch));
      packed[i].codes = {words.x, words.y, 0u, 0u};
    }
  }
  decoded += box / 4 * 8 + box % 4;
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    store_decoded<kBits>(packed[i], box % 4, decoded + (dealt ? dealt_row(rows[i]) : rows[i]) * std::int64_t{boxes} * 2);
}

}  // namespace narrow::cuda
