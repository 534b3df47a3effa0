#pragma once
/// Codes of four bits as bytes of mma.sync, and sums of their products as floats.

#include "kernels/cuda/int4_product.h"

namespace narrow::cuda {

/// Symmetric codes stay in the upper halves of bytes, which are then 16 times the code: no sign needs to be extended. Asymmetric ones have
/// their zero point taken off: -15 .. 15.
template <bool kZeros>
struct Int4Decoder {
  /// Bits of 1.5 * 2^23: a float whose lowest bit counts one. Sums that start from them are floats, 1.5 * 2^23 + sum, as they stand.
  static constexpr int kStart = 0x4B400000;
  static constexpr float kFactor = kZeros ? 1.0f : 0.0625f;

  /// Both fragments of a word. `zero`: the zero point in each byte.
  __device__ static void fragments(std::uint32_t word, std::uint32_t zero, std::uint32_t& low, std::uint32_t& high) {
    if constexpr (kZeros) {
      low = (((word & 0x0F0F0F0Fu) | 0x80808080u) - zero) ^ 0x80808080u;
      high = ((((word >> 4) & 0x0F0F0F0Fu) | 0x80808080u) - zero) ^ 0x80808080u;
    } else {
      low = (word << 4) & 0xF0F0F0F0u;
      high = word & 0xF0F0F0F0u;
    }
  }
  /// The zero points of a lane's rows 8 j + lane / 4, of four bytes, in each byte of a word.
  __device__ static std::uint32_t zero_of(std::uint32_t zeros, int j) {
    return __byte_perm(zeros, 0u, static_cast<std::uint32_t>(j) * 0x1111u);
  }
  /// The sum of a block that began at kStart, exactly; one that began at 0.
  __device__ static float block_sum(int sum) { return __fmaf_rn(__int_as_float(sum), kFactor, -12582912.0f * kFactor); }
  __device__ static float whole_sum(int sum) { return __int2float_rn(kZeros ? sum : sum >> 4); }
};

}  // namespace narrow::cuda
