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

/// (x & mask) | bits, one operation.
__device__ inline std::uint32_t masked_with(std::uint32_t x, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(x), "r"(mask), "r"(bits));
  return result;
}

struct MsfpPairs {
  std::uint32_t first, second;
};

/// Four codes: the bytes of a word, or the nibbles of its low half.
template <int kBits>
__device__ inline MsfpPairs msfp_pairs(std::uint32_t codes, const MsfpFactors& f) {
  if constexpr (kBits == 8) {
    const std::uint32_t first = masked_with(codes, 0x007F007Fu, 0x43004300u), second = masked_with(codes >> 8, 0x007F007Fu, 0x43004300u);
    return {fma_bf16x2(first, f.scale, f.minus) ^ ((codes << 8) & 0x80008000u),
            fma_bf16x2(second, f.scale, f.minus) ^ (codes & 0x80008000u)};
  } else {
    const std::uint32_t x = __byte_perm(codes, 0u, 0x4140);
    const std::uint32_t first = masked_with(x << 4, 0x00700070u, 0x41004100u), second = masked_with(x, 0x00700070u, 0x41004100u);
    return {fma_bf16x2(first, f.scale, f.minus) ^ ((x << 12) & 0x80008000u),
            fma_bf16x2(second, f.scale, f.minus) ^ ((x << 8) & 0x80008000u)};
  }
}

/// A box as it lies in memory.
struct PackedBox {
  uint4 codes;              ///< of 4 bits: x and y alone
  std::uint32_t exponents;  ///< of its 64 columns
};

/// A box as 16 bf16: its first pairs, and its second ones, which belong 64 bytes further.
struct DecodedBox {
  uint4 first, second;
};

/// Number `box` of its 64 columns.
template <int kBits>
__device__ inline DecodedBox decode_box(const PackedBox& packed, int box) {
  const MsfpFactors factors = msfp_factors<kBits>(packed.exponents >> (box * 8), 0);
  const uint4& c = packed.codes;
  const std::uint32_t codes[4] = {c.x, kBits == 8 ? c.y : c.x >> 16, kBits == 8 ? c.z : c.y, kBits == 8 ? c.w : c.y >> 16};
  MsfpPairs pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = msfp_pairs<kBits>(codes[i], factors);
  return {{pairs[0].first, pairs[1].first, pairs[2].first, pairs[3].first},
          {pairs[0].second, pairs[1].second, pairs[2].second, pairs[3].second}};
}

/// One chunk along k of kMsfpRowsAtOnce rows, by one warp: a lane has one box of every other row. Loading and decoding are two steps, so
/// that a warp can load the next one in between.
struct MsfpRows {
  static constexpr int kLanes = kMsfpChunk / kMsfpBox, kStep = 32 / kLanes, kCount = kMsfpRowsAtOnce / kStep;
  PackedBox packed[kCount];
  int bits, first, last, box;  ///< row `first` is the lane's first one; rows up to `last` exist

  /// None of the loads has a condition, so that all are under way together; rows beyond the last are the last once more.
  __device__ void load(const MsfpView v, int row, int chunk, int lane) {
    bits = v.bits;
    first = row + lane / kLanes;
    last = static_cast<int>(v.rows) - 1;
    box = chunk * kLanes + lane % kLanes;
    const int boxes = static_cast<int>(v.depth / kMsfpBox), from = min(box, boxes - 1);  // the last chunk may be shorter
    if (box >= boxes) last = -1;
    const int end = static_cast<int>(v.rows) - 1;
    const std::int64_t pitch = v.pitch();
    const std::uint8_t* const codes = v.codes + from * (kMsfpBox * v.bits / 8);
    const std::uint32_t* const exponents = v.exponents + from / 4 * v.exponent_rows();
#pragma unroll
    for (int i = 0; i < kCount; ++i) packed[i].exponents = __ldg(exponents + min(first + i * kStep, end));
    if (bits == 8) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) packed[i].codes = __ldg(reinterpret_cast<const uint4*>(codes + min(first + i * kStep, end) * pitch));
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint2 words = __ldg(reinterpret_cast<const uint2*>(codes + min(first + i * kStep, end) * pitch));
        packed[i].codes.x = words.x;
        packed[i].codes.y = words.y;
      }
    }
  }

  /// To rows of `pitch` pieces of 16 bytes. B's rows are dealt: wgmma gives neighbouring pairs of columns of D to the four lanes of a quad
  /// in turn; with the rows 8q + 2i + e (q, i < 4, e < 2) of every 32 at 8i + 2q + e, lane q has the eight columns from 8q on instead.
  /// `before_stores` is called before the first of them.
  template <class Call>
  __device__ void store(bool dealt, std::int64_t pitch, uint4* decoded, const Call& before_stores) const {
    const int base = dealt ? (first & ~31) + first % 32 / 8 * 2 + first % 2 : first;
    uint4* const to = decoded + base * pitch + box / 4 * 8 + box % 4;
    const std::int64_t near = (dealt ? 8 : 2) * pitch, far = (dealt ? 2 : 8) * pitch;
    if (bits == 8)
      store_all<8>(to, near, far, before_stores);
    else
      store_all<4>(to, near, far, before_stores);
  }

 private:
  template <int kBits, class Call>
  __device__ void store_all(uint4* to, std::int64_t near, std::int64_t far, const Call& before_stores) const {
    static_assert(kStep == 2 && kCount == 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      DecodedBox boxes[kCount / 2];
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) boxes[i] = decode_box<kBits>(packed[half * (kCount / 2) + i], box % 4);
      if (half == 0) before_stores();
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
        if (first + (half * (kCount / 2) + i) * kStep <= last) {
          uint4* const at = to + i * near + half * far;
          at[0] = boxes[i].first;
          at[4] = boxes[i].second;
        }
    }
  }
};

}  // namespace narrow::cuda
