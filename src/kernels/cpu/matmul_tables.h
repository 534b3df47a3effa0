#pragma once
/// The fast matmul rows of this architecture, best first: kernels/cpu/x86/matmul_table.cc or kernels/cpu/arm/matmul_table.cc.

#include <span>

#include "kernels/matmul.h"

namespace narrow::cpu {

std::span<const MatmulKernel> matmul_rows();

}  // namespace narrow::cpu
