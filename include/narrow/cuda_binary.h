#pragma once
/// Products of +-1 (int1) on CUDA devices: matrices, and 2-D convolutions. Sums are exact integers; results are the CPU's, bit for bit.
/// Nothing here waits; all calls on existing memory can be captured into a graph.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/binary.h"
#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// An int1 matrix [rows, k] as products read it: rows of bits (1 for +1, 0 for -1) at multiples of 16 bytes with zeros beyond k, and what
/// the epilogue needs of every row. Copying shares its memory.
struct Int1Matrix {
  Scheme scheme;  ///< int1 with fp32 scales: row or tensor
  std::int64_t rows = 0, k = 0;
  std::int64_t pitch = 0;  ///< bytes from row to row
  Buffer codes;
  Buffer terms;  ///< per row -2 * (its number of ones) in int32, and its scale in fp32; rows padded to a multiple of 256

  Device device() const { return codes.device(); }
};

/// Memory for a matrix of int1:row.
Int1Matrix allocate_int1(std::int64_t rows, std::int64_t k, Device device);
/// quantize with int1:row, laid for products: the signs of x (fp32, fp16 or bf16 [rows, k], contiguous columns) and the mean of |x| of a
/// row.
void quantize(const Tensor& x, const Int1Matrix& q, Stream stream);
/// A quantized matrix for products. Shares its codes where k is a multiple of 128, else copies them.
Int1Matrix prepare_int1(const DeviceQuantized& q, Stream stream);
/// The exact inverse: canonical bytes. A matrix of int1:tensor keeps one scale.
DeviceQuantized unprepare_int1(const Int1Matrix& q, Stream stream);

struct Int1MatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> residual{};  ///< fp32, fp16 or bf16 [m, n]; added after the activation
  std::string_view kernel{};         ///< a row of int1_matmul_kernel_names() by name, for tests; the best one otherwise
};

/// y [m, n], contiguous columns: int32 (the exact sums, without scales), or fp32, fp16, bf16 of
///   convert(activate(float(sum) * (scale_x * scale_w) + bias[n]) + residual[m, n]).
void matmul(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, Stream stream, const Int1MatmulOptions& options = {});

/// The rows of the table: Hopper's tiles, then exclusive or and popcount on any device.
std::vector<std::string> int1_matmul_kernel_names();
/// The rows for one product, whether they take it, and what was estimated of them.
std::vector<MatmulChoice> explain_matmul(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, const Int1MatmulOptions& options = {});

/// Weights of a binary convolution in the layout of the kernel. Immutable; copying shares its memory.
struct DeviceBinaryConv2d {
  BinaryConv2dOptions options;
  std::int64_t channels = 0, outputs = 0;
  Buffer codes;    ///< words of 32 bits in the order in which the kernel's lanes take them, outputs of a group padded to 64
  Buffer places;   ///< int32: where in a window those words lie
  Buffer offsets;  ///< int32 [group, padded outputs]: taps * channels - 2 * (ones of the output's weights)
  Buffer scales;   ///< fp32 [group, padded outputs]

  Device device() const { return codes.device(); }
};

/// w: int1 [outputs, kernel_h * kernel_w * channels / groups], ordered (row of the kernel, column of the kernel, channel), one scale per
/// output or for all, as narrow::prepare_binary_conv2d takes it; at most 256 taps and 2^20 - 32 columns.
DeviceBinaryConv2d prepare_binary_conv2d(const DeviceQuantized& w, const BinaryConv2dOptions& options, Stream stream);

/// The shape of the result for x [images, height, width, channels].
Shape binary_conv2d_shape(const Shape& x, const DeviceBinaryConv2d& w);
/// Scratch memory: x spread to words, where the channels of a group are no multiple of 32.
std::size_t binary_conv2d_workspace(const DeviceQuantized& x, const DeviceBinaryConv2d& w);
/// x: int1:tensor [images, height, width, channels]; y contiguous, of binary_conv2d_shape: int32 (the exact sums), or fp32, fp16, bf16 of
/// sum * (scale_x * scale_w[output]). Compute capability 8.0 and later.
void binary_conv2d(const DeviceQuantized& x, const DeviceBinaryConv2d& w, const Tensor& y, Stream stream, Workspace workspace = {});

/// The sums at which one-bit results change: bit = sign * sum >= threshold.
struct BinaryThresholds {
  Buffer thresholds;  ///< int32 [outputs]
  Buffer signs;       ///< int32 [outputs]: 1 or -1
};

/// A batch norm over outputs, fp32 [outputs] on the host.
struct BatchNorm {
  Tensor weight, bias, mean, variance;
  double epsilon = 1e-5;
};
/// Folds bit = (scale * sum - mean) / sqrt(variance + epsilon) * weight + bias > 0, evaluated in double for every sum in [-most, most],
/// into thresholds on a device; scales: fp32 [outputs] on the host, scale_x * scale_w. Waits for the stream.
BinaryThresholds fold_batch_norm(const BatchNorm& norm, const Tensor& scales, std::int64_t most, Device device, Stream stream);

/// The same convolution with one-bit results: y int1:tensor of binary_conv2d_shape, whose scale is left as it is. The outputs of a group
/// are a multiple of 8 where there are several groups.
void binary_conv2d(const DeviceQuantized& x, const DeviceBinaryConv2d& w, const BinaryThresholds& thresholds, const DeviceQuantized& y,
                   Stream stream, Workspace workspace = {});

}  // namespace narrow::cuda
