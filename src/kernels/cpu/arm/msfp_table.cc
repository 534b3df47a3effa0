#include <array>

#include "kernels/cpu/msfp_rows.h"

namespace narrow::cpu {

namespace neon_msfp {
extern const MsfpKernel kRow;
}

std::span<const MsfpKernel> msfp_rows() {
  static const std::array<MsfpKernel, 1> rows{neon_msfp::kRow};
  return rows;
}

}  // namespace narrow::cpu
