/// The CPU rows of AArch64, best first.

#include "kernels/cpu/tables.h"

#include <array>

namespace narrow::cpu {

extern const QuantizeKernel kNeonQuantize;
extern const DequantizeKernel kNeonDequantize;

std::span<const QuantizeKernel> quantize_rows() {
  static const std::array rows{kNeonQuantize};
  return rows;
}

std::span<const DequantizeKernel> dequantize_rows() {
  static const std::array rows{kNeonDequantize};
  return rows;
}

}  // namespace narrow::cpu
