#pragma once
/// x / s for many x and one s, as the fp32 division of NUMERICS.md rounds it, in 2 operations for 16-bit x and 4 for fp32.
///   1/s = high + low to about 2^-47: high is 1/s rounded toward zero, low what is left of it, never negative.
///   q = fma(x, high, x * low) is x / s rounded to nearest from a value that is off by less than 2^-46 of it.
/// fp32 x: one step q - (s * q - x) * nearest(1/s) makes it the correctly rounded quotient (Markstein 1990: q is
/// faithful, 1/s rounded to nearest). 16-bit x: the quotient can differ in its last bit only where x / s lies within
/// 2^-46 of the middle of two floats; tests/format/division_test.cc goes through all significands of s and x and shows
/// that the code (at most 7 significant bits) is then the same.
/// low > 0 and the order of the last step keep the sign of a zero.

#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"

namespace narrow::cuda {

struct Divisor {
  float high, low;
  float scale, nearest;  // used for fp32 x alone
};

/// The range of s in which nothing of this under- or overflows.
__device__ inline bool is_plain_divisor(float s) { return s >= 0x1p-80f && s <= 0x1p80f; }

/// Of a plain s; of another one nothing that may be used. The reciprocals are the hardware's IEEE ones without the check of the range.
__device__ inline Divisor make_divisor(float s) {
  Divisor d;
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(s));
  d.scale = s;
  d.high = __fmaf_rz(guess, -__fmaf_rz(s, guess, -1.0f), guess);
  d.nearest = __fmaf_rn(guess, -__fmaf_rn(s, guess, -1.0f), guess);
  // (1 - s * high) / s is a little more than the product; of a power of two, low is 2^-149 instead of 0, which no quotient that has a code
  // feels.
  d.low = __uint_as_float(__float_as_uint(__fmul_rn(__fmaf_rn(-s, d.high, 1.0f), d.high)) + 1u);
  return d;
}

template <DType kType>
__device__ inline float divide(float x, const Divisor& d) {
  const float q = __fmaf_rn(x, d.high, __fmul_rn(x, d.low));
  if constexpr (is_16_bit(kType)) {
    return q;
  } else {
    return __fmaf_rn(-__fmaf_rn(d.scale, q, -x), d.nearest, q);
  }
}

/// x / c, correctly rounded, for the constants that divide amax (tests/format/division_test.cc tries all significands of x).
__device__ inline float divide_by_constant(float x, float constant, float reciprocal) {
  const float q = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-constant, q, x), reciprocal, q);
}

}  // namespace narrow::cuda
