/// The CPU rows of x86-64, best first.

#include "kernels/cpu/tables.h"

#include <array>

namespace narrow::cpu {

extern const QuantizeKernel kAvx512Quantize, kAvx2Quantize;
extern const DequantizeKernel kAvx512Dequantize, kAvx2Dequantize;

std::span<const QuantizeKernel> quantize_rows() {
  static const std::array rows{kAvx512Quantize, kAvx2Quantize};
  return rows;
}

std::span<const DequantizeKernel> dequantize_rows() {
  static const std::array rows{kAvx512Dequantize, kAvx2Dequantize};
  return rows;
}

}  // namespace narrow::cpu
