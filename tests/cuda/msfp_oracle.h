#pragma once
/// The bound of MSFP products on exactly dequantized values, one thread per element.

#include <cstdint>

#include "narrow/cuda.h"
#include "narrow/tensor.h"

namespace narrow::cuda::testing {

/// Elements of y [m, n] (fp32, fp16, bf16; rows y_pitch elements apart) farther from y64 = sum x w + bias than
///   gamma(k) * sum |x w| + one rounding of the output type.   x [m, k] and w [n, k] are fp32, bias [n] too, or null.
unsigned long long count_outside(const Tensor& x, const Tensor& w, const float* bias, const Tensor& y, Stream stream);

}  // namespace narrow::cuda::testing
