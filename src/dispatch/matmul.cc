/// The table of matmul, best first, and the choice of a row.

#include "dispatch/matmul.h"

#include <vector>

#include "kernels/cpu/matmul_special.h"
#include "kernels/cpu/matmul_tables.h"

namespace narrow {

std::span<const MatmulKernel> matmul_kernels() {
  static const std::vector<MatmulKernel> table = [] {
    const std::span<const MatmulKernel> fast = cpu::matmul_rows();
    std::vector<MatmulKernel> rows = cpu::special_matmul_rows();
    rows.insert(rows.end(), fast.begin(), fast.end());
    rows.push_back(reference::kMatmul);
    return rows;
  }();
  return table;
}

const MatmulKernel& find(const MatmulProblem& problem) {
  for (const MatmulKernel& kernel : matmul_kernels())
    if (cpu_supports(kernel.isa) && kernel.accepts(problem)) return kernel;
  return matmul_kernels().back();
}

}  // namespace narrow
