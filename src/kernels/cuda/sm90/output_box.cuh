#pragma once
/// Boxes of 16 rows x 128 or 64 bytes in which a warp hands its results to tensor copies, swizzled so that eight rows touch all banks.

#include "kernels/cuda/sm90/ptx.cuh"

namespace narrow::cuda::sm90 {

constexpr int kOutputBoxBytes = 16 * 128;

/// The place of byte `byte` of row `r` of a box of rows of kRowBytes.
template <int kRowBytes>
__device__ inline std::uint32_t place_in_output_box(const std::byte* box, int r, int byte) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  return shared_address(box) + r * kRowBytes + (byte ^ (kRowBytes == 128 ? r % 8 * 16 : r / 2 % 4 * 16));
}

/// Two values to 16 bits each; beyond fp16's range its largest.
__device__ inline std::uint32_t pack_two(bool half, float low, float high) {
  std::uint32_t result;
  if (half)
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// A warp's 16 rows x kValues * 2 columns, a whole row of the box, into it: rows lane / 4 and that + 8, two neighbouring columns every
/// eight.
template <int kElementBytes, int kValues>
__device__ inline void fill_output_box(bool half, const float (&v)[kValues], std::byte* box) {
  constexpr int kRowBytes = kValues * 2 * kElementBytes;
  const int lane = thread_here() % 32;
  if constexpr (kElementBytes == 2) {
    const int r = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
    for (int q = 0; q < kValues / 8; ++q) {
      const float* s = v + q * 8;
      store_matrices(place_in_output_box<kRowBytes>(box, r, q * 32 + lane / 16 * 16), pack_two(half, s[0], s[1]),
                     pack_two(half, s[2], s[3]), pack_two(half, s[4], s[5]), pack_two(half, s[6], s[7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues / 2; ++i)
      store_shared(place_in_output_box<kRowBytes>(box, lane / 4 + i % 2 * 8, i / 2 * 32 + lane % 4 * 8), v[i * 2], v[i * 2 + 1]);
  }
}

}  // namespace narrow::cuda::sm90
