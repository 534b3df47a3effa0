#include <array>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu {

namespace neon_binary {
extern const BinaryKernel kRow;
}

std::span<const BinaryKernel> binary_rows() {
  static const std::array<BinaryKernel, 1> rows{neon_binary::kRow};
  return rows;
}

}  // namespace narrow::cpu
