#pragma once
/// The end of products with int4 weights: sums of whole rows of D, four columns at a time.

#include "kernels/cuda/int4_product.h"
#include "kernels/cuda/product_finish.cuh"

namespace narrow::cuda {

/// Whether four neighbouring elements of D, from a multiple of four on, can be stored at once.
__device__ inline bool has_vector_stores(const Int4Problem& p) {
  const std::size_t bytes = p.epilogue.out == DType::kF32 ? 16 : 8;
  return p.epilogue.out != DType::kI8 && p.d_pitch % 4 == 0 && reinterpret_cast<std::size_t>(p.d) % bytes == 0;
}

/// Whether finished_product leaves values as they are.
__device__ inline bool is_plain(const ByteEpilogue& e) {
  return e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
}

/// Four neighbouring elements of D, from element `at` on, by one store.
__device__ inline void store_vector(const Int4Problem& p, const float (&v)[4], std::int64_t at) {
  if (p.epilogue.out == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.d) + at) = make_float4(v[0], v[1], v[2], v[3]);
    return;
  }
  uint2 packed;
  if (p.epilogue.out == DType::kF16) {
    const __half2 low = __floats2half2_rn(clamp_half(v[0]), clamp_half(v[1])), high = __floats2half2_rn(clamp_half(v[2]), clamp_half(v[3]));
    packed = make_uint2(reinterpret_cast<const std::uint32_t&>(low), reinterpret_cast<const std::uint32_t&>(high));
  } else {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]), high = __floats2bfloat162_rn(v[2], v[3]);
    packed = make_uint2(reinterpret_cast<const std::uint32_t&>(low), reinterpret_cast<const std::uint32_t&>(high));
  }
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(p.d) + at) = packed;
}

/// Four neighbouring values of a row of D. `whole`: one scale for all columns of k, not yet in the sums; `vector`: by one store.
__device__ inline void store_four(const Int4Problem& p, const float4& sums, float factor, int row, int column, bool whole, bool vector) {
  const float sum[4] = {sums.x, sums.y, sums.z, sums.w};
  const std::int64_t at = row * p.d_pitch + column;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i >= p.w.n) break;
    v[i] = __fmul_rn(sum[i], whole ? __fmul_rn(factor, __ldg(p.w.scales + column + i)) : factor);
    v[i] = finished_product(p.epilogue, v[i], row, column + i, p.w.n);
    if (!vector) store_converted(p.epilogue, p.d, v[i], at + i);
  }
  if (vector) store_vector(p, v, at);
}

}  // namespace narrow::cuda
