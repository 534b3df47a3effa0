#include <array>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu {

namespace avx512_binary {
extern const BinaryKernel kRow;
}
namespace avx2_binary {
extern const BinaryKernel kRow;
}

std::span<const BinaryKernel> binary_rows() {
  static const std::array<BinaryKernel, 2> rows{avx512_binary::kRow, avx2_binary::kRow};
  return rows;
}

}  // namespace narrow::cpu
