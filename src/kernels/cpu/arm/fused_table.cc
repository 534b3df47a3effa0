#include <array>

#include "kernels/cpu/fused_rows.h"

namespace narrow::cpu {

namespace neon_fused {
extern const FusedKernel kRow;
}

std::span<const FusedKernel> fused_rows() {
  static const std::array<FusedKernel, 1> rows{neon_fused::kRow};
  return rows;
}

}  // namespace narrow::cpu
