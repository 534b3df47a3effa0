#include <array>

#include "kernels/cpu/msfp_rows.h"

namespace narrow::cpu {

namespace avx512_msfp {
extern const MsfpKernel kRow;
}
namespace avx2_msfp {
extern const MsfpKernel kRow;
}

std::span<const MsfpKernel> msfp_rows() {
  static const std::array<MsfpKernel, 2> rows{avx512_msfp::kRow, avx2_msfp::kRow};
  return rows;
}

}  // namespace narrow::cpu
