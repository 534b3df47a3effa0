#include "kernels/msfp.h"

#include <vector>

#include "kernels/cpu/msfp_rows.h"

namespace narrow {

std::span<const MsfpKernel> msfp_kernels() {
  static const std::vector<MsfpKernel> table = [] {
    const std::span<const MsfpKernel> fast = cpu::msfp_rows();
    std::vector<MsfpKernel> rows(fast.begin(), fast.end());
    rows.push_back(reference::kMsfp);
    return rows;
  }();
  return table;
}

}  // namespace narrow
