#include "dispatch/binary.h"

#include <vector>

#include "kernels/cpu/binary_rows.h"

namespace narrow {

std::span<const BinaryKernel> binary_kernels() {
  static const std::vector<BinaryKernel> table = [] {
    const std::span<const BinaryKernel> fast = cpu::binary_rows();
    std::vector<BinaryKernel> rows(fast.begin(), fast.end());
    rows.push_back(reference::kBinary);
    return rows;
  }();
  return table;
}

const BinaryKernel& find(const BinaryProblem& problem) {
  for (const BinaryKernel& kernel : binary_kernels())
    if (cpu_supports(kernel.isa) && kernel.accepts(problem)) return kernel;
  return binary_kernels().back();
}

}  // namespace narrow
