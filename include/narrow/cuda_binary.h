#pragma once
/// Products of +-1 (int1) on CUDA devices: matrices, and 2-D convolutions. Sums are exact integers; results are the CPU's, bit for bit.
/// Nothing here waits; all calls on existing memory can be captured into a graph.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// An int1 matrix [rows, k] as products read it: rows of bits (1 for +1, 0 for -1) at multiples of 16 bytes with zeros beyond k, and what the
/// epilogue needs of every row. Copying shares its memory.
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
/// quantize with int1:row, laid for products: the signs of x (fp32, fp16 or bf16 [rows, k], contiguous columns) and the mean of |x| of a row.
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

}  // namespace narrow::cuda
