#include "dispatch/attention.h"

#include <vector>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

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

std::span<const LogitsKernel> logits_kernels() {
  static const std::vector<LogitsKernel> table = [] {
    const std::span<const LogitsKernel> fast = cpu::logits_rows();
    std::vector<LogitsKernel> rows(fast.begin(), fast.end());
    rows.push_back(reference::kLogits);
    return rows;
  }();
  return table;
}

const LogitsKernel& find_logits() {
  for (const LogitsKernel& kernel : logits_kernels())
    if (cpu_supports(kernel.isa)) return kernel;
  return logits_kernels().back();
}

}  // namespace narrow
