#pragma once
/// Binary convolution: activations and weights are +-1 (int1), sums are exact integers. Products of int1 matrices are
/// matmul's (narrow/matmul.h); both run on the same kernels.

#include <cstdint>

#include "narrow/quantize.h"
#include "narrow/tensor.h"

namespace narrow {

struct BinaryConv2dOptions {
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  /// Positions outside of the image count for nothing: what a convolution of the +-1 values with zero padding gives.
  /// (+-1 has no zero of its own; padding with -1 or +1 would change the sums at the border.)
  std::int64_t pad_h = 0, pad_w = 0;
  std::int64_t groups = 1;
};

/// Weights in the layout of the kernels. Immutable; copying shares its memory.
struct PreparedBinaryConv2d {
  BinaryConv2dOptions options;
  std::int64_t channels = 0, outputs = 0;
  Buffer codes;     ///< [group][panel][word][64 outputs], every tap starting on a word of 32 channels
  Buffer scales;    ///< fp32 [outputs]
  Buffer tap_sums;  ///< int32 [outputs, taps]: what a tap adds to a sum where the image has only -1
};

/// w: int1 [outputs, kernel_h * kernel_w * channels / groups], ordered (row of the kernel, column of the kernel, channel), one scale
/// per output or for all. Throws InvalidArgument where it does not fit the options.
PreparedBinaryConv2d prepare_binary_conv2d(const QuantizedTensor& w, const BinaryConv2dOptions& options);

/// x: int1 [images, height, width, channels] with one scale for the tensor. Gives [images, out_height, out_width, outputs]:
/// kI32: the exact sums; kF32: sum * (scale_x * scale_w[output]). The same bits for any number of threads.
Tensor binary_conv2d(const QuantizedTensor& x, const PreparedBinaryConv2d& w, DType out = DType::kF32);

}  // namespace narrow
