#pragma once
/// The product of a decoded value and its scale, with the CPU's bits where it is NaN.

#include <bit>
#include <cstdint>

namespace narrow::cuda {

/// v * s. GPUs answer any NaN with one without sign or payload; an x86 host keeps the first NaN operand, and makes a negative one of
/// infinity * 0.
__device__ inline float scaled_value(float value, float scale) {
  if (value != value) return value;
  if (scale != scale) return scale;
  const float product = __fmul_rn(value, scale);
  return product != product ? __uint_as_float(0xFFC00000u) : product;
}

}  // namespace narrow::cuda
