#pragma once
/// The fast CPU rows of this architecture, best first: kernels/cpu/x86/table.cc or kernels/cpu/arm/table.cc.

#include <span>

#include "kernels/quantize.h"

namespace narrow::cpu {

std::span<const QuantizeKernel> quantize_rows();
std::span<const DequantizeKernel> dequantize_rows();

}  // namespace narrow::cpu
