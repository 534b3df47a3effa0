#include "kernels/cpu/matmul_tables.h"

namespace narrow::cpu {

std::span<const MatmulKernel> matmul_rows() { return {}; }

}  // namespace narrow::cpu
