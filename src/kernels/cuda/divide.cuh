#pragma once
/// x / s for many x and one s, as the fp32 division of NUMERICS.md rounds it, in 2 operations for 16-bit x and 4 for fp32.
///   1/s = high + low to about 2^-47: high is 1/s rounded toward zero, low what is left of it, never negative.
///   q = fma(x, high, x * low) is x / s rounded to nearest from a value that is off by less than 2^-46 of it.
/// fp32 x: one step q - (s * q - x) * nearest(1/s) makes it the correctly rounded quotient (Markstein 1990: q is
/// faithful, 1/s rounded to nearest). 16-bit x: the quotient can differ in its last bit only where x / s lies within
/// 2^-46 of the middle of two floats; tests/format/division_test.cc goes through all significands of s and x and shows
/// that the code (at most 7 significant bits) is then the same.
/// low >= 0 and the order of the last step keep the sign of a zero.

#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"

namespace narrow::cuda {

struct Divisor {
  float high, low;
  float scale, nearest;  // used for fp32 x alone
};

/// The range of s in which nothing of this under- or overflows.
__device__ inline bool is_plain_divisor(float s) { return s >= 0x1p-80f && s <= 0x1p80f; }

__device__ inline Divisor make_divisor(float s) {
  Divisor d;
  d.scale = s;
  d.high = __frcp_rz(s);
  const float low = __fmul_rn(__fmaf_rn(-s, d.high, 1.0f), d.high);
  d.low = __uint_as_float(__float_as_uint(low) + (low != 0.0f ? 1u : 0u));  // (1 - s * high) / s is a little more than the product
  d.nearest = __frcp_rn(s);
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

}  // namespace narrow::cuda
