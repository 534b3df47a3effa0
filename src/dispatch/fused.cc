#include "dispatch/fused.h"

#include <vector>

#include "kernels/cpu/fused_rows.h"

namespace narrow {

std::span<const FusedKernel> fused_kernels() {
  static const std::vector<FusedKernel> table = [] {
    const std::span<const FusedKernel> fast = cpu::fused_rows();
    std::vector<FusedKernel> rows(fast.begin(), fast.end());
    rows.push_back(reference::kFused);
    return rows;
  }();
  return table;
}

const FusedKernel& find(const FusedProblem& problem) {
  for (const FusedKernel& kernel : fused_kernels())
    if (cpu_supports(kernel.isa) && kernel.accepts(problem)) return kernel;
  return fused_kernels().back();
}

}  // namespace narrow
