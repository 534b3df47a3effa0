#pragma once
/// From fp32 sums in a warpgroup's registers to the output: scales, bias, activation, residual, conversion, stores.

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/sm90/ptx.cuh"

namespace narrow::cuda::sm90 {

struct ByteOutput {
  ByteEpilogue epilogue;
  const float* a_scales;  ///< of kOuter, else null
  const float* b_scales;
  int a_scale_step, b_scale_step;
  void* d;
  std::int64_t pitch, residual_pitch;
  int n;                 ///< columns of D
  bool rows_end_with_d;  ///< no group's last rows are followed by another's
  bool vector_stores;    ///< 16-bit output without bias, activation, residual; rows can be stored 16 bytes at a time
};

__device__ inline float finish(const ByteOutput& out, float v, std::int64_t row, int column) {
  return finish_value(out.epilogue, out.d, v, column, row * out.pitch + column, row * out.residual_pitch + column);
}
__device__ inline void store_value(const ByteOutput& out, float v, std::int64_t at) { store_converted(out.epilogue, out.d, v, at); }

__device__ inline std::uint32_t pack16(bool half, float low, float high) {
  std::uint32_t result;
  if (half) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(clamp_half(high)), "f"(clamp_half(low)));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// Multiplies a thread's sums by the scales of their rows and columns; scales of columns begin at `first`.
template <int kCount>
__device__ inline void scale_sums(const ByteOutput& out, float (&sums)[kCount], std::int64_t row, int rows, int column, std::int64_t first) {
  const int lane = thread_here() % 32, r = lane / 4;
  const float low = r < rows ? __ldg(out.a_scales + (row + r) * out.a_scale_step) : 0.0f;
  const float high = r + 8 < rows ? __ldg(out.a_scales + (row + r + 8) * out.a_scale_step) : 0.0f;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int c = min(column + i / 2 * 8 + lane % 4 * 2 + i % 2, out.n - 1), at = i / 2 * 4 + i % 2;
    const float scale = __ldg(out.b_scales + (first + c) * out.b_scale_step);
    sums[at] *= low * scale;
    sums[at + 2] *= high * scale;
  }
}

/// Bytes of shared memory in which one warp puts 16 rows x 64 columns of 16-bit values (or x 32 of fp32).
constexpr int kStagingBytes = 16 * 128;

/// 16 rows x 64 columns of sums (32 of a thread) in 16 bits into the warp's staging memory, swizzled as a tensor copy expects it.
__device__ inline void stage_box(bool half, const float* sums, std::byte* staging) {
  const int lane = thread_here() % 32, r = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float* s = sums + q * 8;
    store_matrices(shared_address(staging) + r * 128 + ((q * 2 + lane / 16) ^ (r % 8)) * 16, pack16(half, s[0], s[1]),
                   pack16(half, s[2], s[3]), pack16(half, s[4], s[5]), pack16(half, s[6], s[7]));
  }
}

/// The first `rows` rows of a staged box to D, by ordinary stores: where the others belong to the next group.
__device__ inline void store_staged_rows(const ByteOutput& out, std::int64_t row, int rows, int column, const std::byte* staging) {
  const int lane = thread_here() % 32, c = column + lane % 8 * 8;
  for (int i = lane / 8; i < rows; i += 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(staging + i * 128 + ((lane % 8) ^ (i % 8)) * 16);
    if (c < out.n) *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(out.d) + (row + i) * out.pitch + c) = words;
  }
}

/// Any epilogue: fp32 through the warp's shared memory, then a row of 32 columns at a time.
template <int kCount>
__device__ inline void store_any(const ByteOutput& out, const float (&sums)[kCount], std::int64_t row, int rows, int column,
                                 std::byte* staging) {
  const int lane = thread_here() % 32;
  float* values = reinterpret_cast<float*>(staging);  // [16][32], columns exchanged against bank conflicts
#pragma unroll
  for (int part = 0; part < kCount / 16; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* s = sums + part * 16 + i * 2;
      const int r = lane / 4 + i % 2 * 8, c = i / 2 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(values + r * 32 + (c ^ (r % 8 * 4))) = make_float2(s[0], s[1]);
    }
    __syncwarp();
    const int c = column + part * 32 + lane;
#pragma unroll 1
    for (int r = 0; r < min(rows, 16); ++r) {
      const float v = values[r * 32 + (lane ^ (r % 8 * 4))];
      if (c < out.n) store_value(out, finish(out, v, row + r, c), (row + r) * out.pitch + c);
    }
  }
}

/// The sums of a product with swapped operands: one warp's 16 columns of D from `first` on (`real` of them exist), rows from `row` on.
/// Here out.n counts the rows of D.
template <int kCount>
__device__ inline void store_transposed(const ByteOutput& out, const float (&sums)[kCount], int first, int real, int row,
                                        std::byte* staging) {
  constexpr int kPart = kCount < 16 ? kCount : 16;    // sums of a thread at a time: at most 32 rows of D
  float* values = reinterpret_cast<float*>(staging);  // [row of D][16]
  const int lane = thread_here() % 32;
#pragma unroll
  for (int part = 0; part < kCount / kPart; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPart; ++i) values[(i / 4 * 8 + lane % 4 * 2 + i % 2) * 16 + lane / 4 + i / 2 % 2 * 8] = sums[part * kPart + i];
    __syncwarp();
#pragma unroll 1
    for (int i = lane / 16; i < kPart * 2; i += 2) {
      const int r = row + part * kPart * 2 + i, c = first + lane % 16;
      if (r < out.n && lane % 16 < real) store_value(out, finish(out, values[i * 16 + lane % 16], r, c), std::int64_t{r} * out.pitch + c);
    }
  }
}

/// Finishes and stores four neighbouring sums of a row of D, `real` of which exist: the shares of a tile that was cut into parts.
template <bool kSwapped, bool kOuter>
__device__ inline void store_four(const ByteOutput& out, float4 sums, std::int64_t row, int column, int real) {
  float v[4] = {sums.x, sums.y, sums.z, sums.w};
  if constexpr (kOuter) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t left = kSwapped ? column + min(i, real - 1) : row, right = kSwapped ? row : column + min(i, real - 1);
      v[i] *= __ldg(out.a_scales + left * out.a_scale_step) * __ldg(out.b_scales + right * out.b_scale_step);
    }
  }
  const std::int64_t at = row * out.pitch + column;
  if (out.vector_stores) {
    const bool half = out.epilogue.out == DType::kF16;
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(out.d) + at) = {pack16(half, v[0], v[1]), pack16(half, v[2], v[3])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < real) store_value(out, finish(out, v[i], row, column + i), at + i);
}

}  // namespace narrow::cuda::sm90
