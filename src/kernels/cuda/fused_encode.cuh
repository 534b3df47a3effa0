#pragma once
/// Quotients of an fp32 row by its scale, for int8 and e4m3 codes; roundings and maxima of the fused rows.
///
/// Two operations for a quotient: q = fma(y, high, y * low) with 1/s = high + low is y / s to 2^-43 before its one rounding, so
/// it differs from the rounded quotient only where y / s lies within 2^-43 of the middle m of two floats, and the code differs
/// only where m is next to a tie t of codes. A tie has at most 8 significant bits: t = T 2^e, T < 2^8, m = 2^(e-18) (T 2^18 -+ c),
/// c = 1 or 2. With integers y = A 2^i, s = B 2^j (24 bits each), y - m s is a multiple of A 2^h - B T 2^18 +- c B, h >= 18: not
/// smaller than the distance of c B from the multiples of 2^18. So where B is at least 256 away from every multiple of 2^17, y / s is
/// at least 256 / 2^50 = 2^-42 away from m, and two operations give the code of the division. Other scales take four (divide.cuh).

#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/encode.cuh"

namespace narrow::cuda {

/// Whether two operations per quotient are enough for this plain scale.
__device__ inline bool is_tie_free(float s) { return ((__float_as_uint(s) + 256u) & 0x1FFFFu) >= 512u; }

/// 1 / s = high + low, low >= 0 (which keeps the sign of a zero quotient), for a plain s.
__device__ inline float2 quick_reciprocal(float s) {
  float high;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(high) : "f"(s));  // within one unit in the last place
  if (__fmaf_rn(-s, high, 1.0f) < 0.0f) high = __uint_as_float(__float_as_uint(high) - 1u);
  return make_float2(high, __fmul_rn(__fmaf_rn(-s, high, 1.0f), high));
}

__device__ inline float quick_quotient(float y, float high, float low) { return __fmaf_rn(y, high, __fmul_rn(y, low)); }

__device__ inline float clamp_to_int8(float q) { return fminf(fmaxf(q, -127.0f), 127.0f); }

/// The value to a 16-bit type, nearest even, saturating, two at a time; a NaN becomes a NaN.
template <DType kType>
__device__ inline std::uint32_t round_two(float a, float b) {
  std::uint32_t pair;
#if __CUDA_ARCH__ >= 900
  if constexpr (kType == DType::kBf16)
    asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  else
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
#else
  constexpr Format kFormat = kType == DType::kBf16 ? kBf16 : kFp16;
  pair = encode(kFormat, a) | (encode(kFormat, b) << 16);
#endif
  return pair;
}

/// The larger magnitude; NaN where one is.
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(a)), "f"(fabsf(b)));
  return result;
}

/// The scale of the largest magnitude (its bits): amax / largest code, 1 for zeros.
template <bool kInt8>
__device__ inline float scale_of(std::uint32_t magnitude) {
  constexpr float kLargest = kInt8 ? 127.0f : 448.0f;
  const float amax = __uint_as_float(magnitude);
  float scale = divide_by_constant(amax, kLargest, 1.0f / kLargest);
  if (!(amax > 0x1p-80f && amax < 0x1p80f)) {
    scale = amax == 0.0f ? 1.0f : __fdiv_rn(amax, kLargest);
    if (scale == 0.0f) scale = __uint_as_float(1u);
  }
  return scale;
}

}  // namespace narrow::cuda
