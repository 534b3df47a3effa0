/// The tables of quantize and dequantize, best first, and the choice of a row.

#include "dispatch/quantize.h"

#include <vector>

#include "kernels/cpu/tables.h"

namespace narrow {
namespace {

template <typename Kernel>
std::vector<Kernel> joined(std::span<const Kernel> fast, const Kernel& reference) {
  std::vector<Kernel> table(fast.begin(), fast.end());
  table.push_back(reference);
  return table;
}

template <typename Kernel, typename Problem>
const Kernel& first_that_accepts(std::span<const Kernel> table, const Problem& problem) {
  for (const Kernel& kernel : table)
    if (cpu_supports(kernel.isa) && kernel.accepts(problem)) return kernel;
  return table.back();
}

}  // namespace

std::span<const QuantizeKernel> quantize_kernels() {
  static const std::vector<QuantizeKernel> table = joined(cpu::quantize_rows(), reference::kQuantize);
  return table;
}

std::span<const DequantizeKernel> dequantize_kernels() {
  static const std::vector<DequantizeKernel> table = joined(cpu::dequantize_rows(), reference::kDequantize);
  return table;
}

const QuantizeKernel& find(const QuantizeProblem& problem) { return first_that_accepts(quantize_kernels(), problem); }
const DequantizeKernel& find(const DequantizeProblem& problem) { return first_that_accepts(dequantize_kernels(), problem); }

}  // namespace narrow
