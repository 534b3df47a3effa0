#pragma once
/// The choice of a quantize or dequantize kernel: the first row that runs here and accepts the problem.

#include "kernels/quantize.h"

namespace narrow {

const QuantizeKernel& find(const QuantizeProblem& problem);
const DequantizeKernel& find(const DequantizeProblem& problem);

}  // namespace narrow
