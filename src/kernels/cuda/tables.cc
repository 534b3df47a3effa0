/// The CUDA tables, best first.

#include <array>

#include "kernels/cuda/quantize.h"

namespace narrow::cuda {

std::span<const QuantizeKernel> quantize_kernels() {
  static const std::array rows{kQuantizeBlocks, kQuantizeRows, kQuantizeResident, kQuantizeTensor, kQuantizeGeneric};
  return rows;
}

std::span<const DequantizeKernel> dequantize_kernels() {
  static const std::array rows{kDequantizeFlat, kDequantizeGeneric};
  return rows;
}

}  // namespace narrow::cuda
