#pragma once
/// What an fp8 product does with a finished sum: bias, activation, residual, conversion.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {

__device__ inline float activate(Activation activation, float v) {
  switch (activation) {
    case Activation::kRelu: return fmaxf(v, 0.0f);
    case Activation::kGelu: return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    case Activation::kSilu: return v / (1.0f + expf(-v));
    default: return v;
  }
}

__device__ inline float load_value(const void* data, DType type, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  if (type == DType::kF16) return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

__device__ inline float clamp_half(float v) { return fminf(fmaxf(v, -65504.0f), 65504.0f); }

/// The value of one scaled sum, before its conversion; `at` is its place in D, `residual_at` in the residual.
__device__ inline float finish_value(const ByteEpilogue& e, const void* d, float v, int column, std::int64_t at, std::int64_t residual_at) {
  if (e.bias != nullptr) v += __ldg(e.bias + column);
  v = activate(e.activation, v);
  if (e.residual != nullptr) v += load_value(e.residual, e.residual_type, residual_at);
  if (e.accumulate) v += static_cast<const float*>(d)[at];
  return v;
}

__device__ inline void store_converted(const ByteEpilogue& e, void* d, float v, std::int64_t at) {
  switch (e.out) {
    case DType::kF32: static_cast<float*>(d)[at] = v; break;
    case DType::kF16: static_cast<__half*>(d)[at] = __float2half_rn(clamp_half(v)); break;
    case DType::kBf16: static_cast<__nv_bfloat16*>(d)[at] = __float2bfloat16_rn(v); break;
    default: {
      const __nv_fp8_interpretation_t format = e.out == DType::kF8E4m3 ? __NV_E4M3 : __NV_E5M2;
      static_cast<std::uint8_t*>(d)[at] = __nv_cvt_float_to_fp8(__fdiv_rn(v, e.out_scale), __NV_SATFINITE, format);
    }
  }
}

}  // namespace narrow::cuda
