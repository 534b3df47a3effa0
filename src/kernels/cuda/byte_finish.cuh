#pragma once
/// What a product does with a finished sum: zero points, scales, bias, activation, residual, conversion. Every operation of plain and
/// rectified results is one IEEE operation in the order of reference/matmul.cc, so that integer products give the CPU's bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/byte_product.h"
#include "narrow/codec.h"

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

/// A sum of integers without what the zero points add; a and b are rows of A and B.
__device__ inline int without_zero_points(const ByteOuter& o, int sum, std::int64_t a, std::int64_t b) {
  const int zero = o.a_zeros != nullptr ? __ldg(o.a_zeros + a * o.a_step) : 0;
  if (o.a_zeros != nullptr) sum -= zero * __ldg(o.b_sums + b);
  if (o.b_zeros != nullptr) sum -= __ldg(o.b_zeros + b * o.b_step) * (__ldg(o.a_sums + a) - o.k * zero);
  return sum;
}
__device__ inline float outer_scale(const ByteOuter& o, std::int64_t a, std::int64_t b) {
  return __fmul_rn(__ldg(o.a_scales + a * o.a_step), __ldg(o.b_scales + b * o.b_step));
}

/// The value of one scaled sum, before its conversion; `at` is its place in D, `residual_at` in the residual.
__device__ inline float finish_value(const ByteEpilogue& e, const void* d, float v, int column, std::int64_t at, std::int64_t residual_at) {
  if (e.bias != nullptr) v = __fadd_rn(v, __ldg(e.bias + column));
  v = activate(e.activation, v);
  if (e.residual != nullptr) v = __fadd_rn(v, load_value(e.residual, e.residual_type, residual_at));
  if (e.accumulate) v += static_cast<const float*>(d)[at];
  return v;
}

__device__ inline void store_converted(const ByteEpilogue& e, void* d, float v, std::int64_t at) {
  switch (e.out) {
    case DType::kF32: static_cast<float*>(d)[at] = v; break;
    case DType::kF16: static_cast<__half*>(d)[at] = __float2half_rn(clamp_half(v)); break;
    case DType::kBf16: static_cast<__nv_bfloat16*>(d)[at] = __float2bfloat16_rn(v); break;
    case DType::kI8: {
      constexpr Format kFormat = kInt8;  // device code cannot refer to a namespace-scope object
      static_cast<std::uint8_t*>(d)[at] = static_cast<std::uint8_t>(encode(kFormat, __fdiv_rn(v, e.out_scale)));
      break;
    }
    default: {
      const __nv_fp8_interpretation_t format = e.out == DType::kF8E4m3 ? __NV_E4M3 : __NV_E5M2;
      static_cast<std::uint8_t*>(d)[at] = __nv_cvt_float_to_fp8(__fdiv_rn(v, e.out_scale), __NV_SATFINITE, format);
    }
  }
}

/// An integer sum to its place in D: itself, or what the epilogue makes of it.
__device__ inline void store_integer(const ByteEpilogue& e, const ByteOuter& o, void* d, int sum, std::int64_t a, std::int64_t b,
                                     int column, std::int64_t at, std::int64_t residual_at) {
  sum = without_zero_points(o, sum, a, b);
  if (e.out == DType::kI32) {
    static_cast<int*>(d)[at] = sum;
    return;
  }
  const float v = __fmul_rn(__int2float_rn(sum), outer_scale(o, a, b));
  store_converted(e, d, finish_value(e, d, v, column, at, residual_at), at);
}

}  // namespace narrow::cuda
