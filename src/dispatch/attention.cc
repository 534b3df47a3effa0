#include "dispatch/attention.h"

#include <vector>

#include "kernels/cpu/attention_rows.h"

namespace narrow {

std::span<const AttentionKernel> attention_kernels() {
  static const std::vector<AttentionKernel> table = [] {
    const std::span<const AttentionKernel> fast = cpu::attention_rows();
    std::vector<AttentionKernel> rows(fast.begin(), fast.end());
    rows.push_back(reference::kAttention);
    return rows;
  }();
  return table;
}

const AttentionKernel& find(const AttentionProblem& problem) {
  for (const AttentionKernel& kernel : attention_kernels())
    if (cpu_supports(kernel.isa) && kernel.accepts(problem)) return kernel;
  return attention_kernels().back();
}

}  // namespace narrow
