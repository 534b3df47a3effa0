#pragma once
/// Rows of the matmul table for pairs that have a product of their own: int1 x int1 (kernels/binary.h), MSFP x MSFP (kernels/msfp.h).

#include <vector>

#include "kernels/matmul.h"

namespace narrow::cpu {

/// Best first; to be tried before the general rows.
std::vector<MatmulKernel> special_matmul_rows();

}  // namespace narrow::cpu
