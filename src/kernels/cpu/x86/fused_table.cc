#include <array>

#include "kernels/cpu/fused_rows.h"

namespace narrow::cpu {

namespace avx512_fused {
extern const FusedKernel kRow;
}
namespace avx2_fused {
extern const FusedKernel kRow;
}

std::span<const FusedKernel> fused_rows() {
  static const std::array<FusedKernel, 2> rows{avx512_fused::kRow, avx2_fused::kRow};
  return rows;
}

}  // namespace narrow::cpu
