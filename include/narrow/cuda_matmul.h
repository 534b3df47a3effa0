#pragma once
/// Products of fp8 matrices, dense and grouped, of int8 matrices, and of int8 with int4 matrices on CUDA devices:
///   y[m, n] = convert(activate(sum_k x[m, k] * w[n, k] + bias[n]) + residual[m, n]),  x and w standing for the dequantized values.
/// Sums of fp8 run over 128 along k on the tensor cores, and are then added up in fp32 in one fixed order; sums of int8 are exact. Nothing
/// here waits; all calls on existing memory can be captured into a graph.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"
#include "narrow/cuda_fused.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// An fp8 matrix [rows, k], or `groups` of them, as products read it: rows start at multiples of 16 bytes, and scales of 1x128 blocks lie
/// as [k blocks, scale_rows]. Copying shares its memory.
struct Fp8Matrix {
  Scheme scheme;  ///< fp8_e4m3 or fp8_e5m2 with fp32 scales: tensor, row, block128, or (weights) 128x128
  std::int64_t groups = 1, rows = 0, k = 0;
  std::int64_t pitch = 0;       ///< bytes from row to row
  std::int64_t scale_rows = 0;  ///< of block128: rows of all groups, each group padded to a multiple of 4
  Buffer codes;
  Buffer scales;

  Device device() const { return codes.device(); }
};

/// The tensor, a matrix or a batch of them, for products. Shares its memory where the layout is right already (k a multiple of 16, no 1x128
/// scales), else copies: codes beyond k are zeros, so any k is exact.
Fp8Matrix prepare_fp8(const DeviceQuantized& q, Stream stream);
/// What fused_quantize wrote; with transposed_scales and k a multiple of 16 nothing is copied. A batch with transposed scales has a
/// multiple of 4 rows in each matrix.
Fp8Matrix prepare_fp8(const FusedOutput& q, Stream stream);

struct Fp8MatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> residual{};  ///< fp32, fp16 or bf16, of y's shape; added after the activation
  bool accumulate = false;           ///< adds y's old values, fp32: gradients of weights
  float out_scale = 1.0f;            ///< of fp8 y: code = encode(v / out_scale)
  /// Of tensor and row scales: sums may stay in the tensor cores' accumulators, which keep about 13 bits, over all of k. Faster, and with
  /// an error that grows with k.
  bool fast_accumulation = false;

  // Groups, at most one of the three; int32 on the device, read when the product runs.
  /// [groups + 1], increasing: group g has the rows [offsets[g], offsets[g + 1]) of x and y, any number of them, and matrix g of w.
  std::optional<Tensor> row_offsets{};
  /// [groups]: group g has the first counts[g] rows of matrix g of x and y; y's other rows are left as they are.
  std::optional<Tensor> row_counts{};
  /// [groups + 1], increasing multiples of 128: group g has the columns [offsets[g], offsets[g + 1]) of x and w, and matrix g of y.
  std::optional<Tensor> depth_offsets{};

  std::string_view kernel{};  ///< a row of fp8_matmul_kernel_names() by name, for tests; the best one otherwise
};

/// y: contiguous columns; [m, n], or [groups, m, n] with row_counts and depth_offsets; fp32, fp16, bf16, fp8. Scales of x and w go together
/// as tensor or row x tensor or row, block128 x 128x128, block128 x block128; formats as e4m3 x e4m3, e4m3 x e5m2, e5m2 x e4m3.
void matmul(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, Stream stream, const Fp8MatmulOptions& options = {});

/// The rows of the table: Hopper's configurations, mma.sync (compute capability 8.0 and later), then the one that runs everywhere.
std::vector<std::string> fp8_matmul_kernel_names();
/// The rows for one product, whether they take it, and what was estimated of them.
std::vector<MatmulChoice> explain_matmul(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options = {});

/// The same for x [m, k] times a weight [n, k] of a scheme on a Hopper of so many multiprocessors (an H200 has 132); needs no device.
/// Empty in a build without CUDA, and for schemes that these products do not take.
std::vector<MatmulChoice> explain_fp8_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight,
                                             int multiprocessors = 132);

/// An int8 matrix [rows, k] as products read it: signed codes, rows at multiples of 16 bytes with zeros beyond k, or stripes of 32 columns.
/// Copying shares its memory.
struct Int8Matrix {
  Scheme scheme;  ///< int8 with fp32 scales: tensor or row, symmetric or asymmetric
  std::int64_t rows = 0, k = 0;
  Layout layout = Layout::kRow;  ///< or kCol32, of x
  std::int64_t pitch = 0;        ///< of kRow: bytes from row to row
  Buffer codes;
  Buffer scales;
  Buffer zero_points;  ///< of asymmetric schemes: int32, of the signed codes
  Buffer sums;         ///< int32 [rows], over the codes of a row: needed where the other matrix is asymmetric

  Device device() const { return codes.device(); }
};

/// The matrix for products. Shares its memory where the layout is right already (symmetric, k a multiple of 16), else copies; asymmetric
/// codes become signed ones (code - 128). `sums` asks for one more pass.
Int8Matrix prepare_int8(const DeviceQuantized& q, Stream stream, bool sums = true);
/// What fused_quantize wrote, in rows or in stripes of 32 columns; nothing is copied where k is a multiple of 16.
Int8Matrix prepare_int8(const FusedOutput& q, Stream stream, bool sums = false);

struct Int8MatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> residual{};  ///< fp32, fp16 or bf16 [m, n]; added after the activation
  float out_scale = 1.0f;            ///< of int8 y: code = encode(v / out_scale)
  Layout y_layout = Layout::kRow;    ///< or kCol32: y then is one row of layout_size(kCol32, m, n) elements; columns beyond n hold anything
  std::string_view kernel{};         ///< a row of int8_matmul_kernel_names() by name, for tests; the best one otherwise
};

/// y [m, n], contiguous columns: int32 (the exact sums, zero points taken off, without scales), or int8, fp32, fp16, bf16 of
///   convert(activate(scale_x * scale_w * (sum - zero-point terms) + bias[n]) + residual[m, n]),
/// with the bits that the CPU's matmul gives where there is no GELU or SiLU.
void matmul(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, Stream stream, const Int8MatmulOptions& options = {});

/// A linear layer: fused_quantize of the input (a norm or another neighbour, per token or static; a SmoothQuant factor is part of the
/// norm's weight) into `x`, then the product. `x` is scratch memory of allocate_fused with int8:row or int8:tensor, k a multiple of 16.
void linear(const FusedInput& input, const FusedOutput& x, const Int8Matrix& w, const Tensor& y, Stream stream,
            const Int8MatmulOptions& options = {});

/// The rows of the table: Hopper's configurations, mma.sync (compute capability 8.0 and later), dp4a (any device).
std::vector<std::string> int8_matmul_kernel_names();
/// The rows for one product, whether they take it, and what was estimated of them.
std::vector<MatmulChoice> explain_matmul(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, const Int8MatmulOptions& options = {});
/// The same for x [m, k] times a weight [n, k] of a scheme on a Hopper; needs no device. Empty in a build without CUDA, and for schemes
/// that these products do not take.
std::vector<MatmulChoice> explain_int8_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight,
                                              int multiprocessors = 132);

/// An int4 weight [n, k] as products with int8 activations read it (W4A8): cells of 32 x 32 codes in the order of tensor-core fragments.
/// Copying shares its memory.
struct Int4Weight {
  Scheme scheme;  ///< int4, symmetric or asymmetric: tensor, row, or blocks of 32, 64, .. 256 columns; scales in fp32, fp16 or bf16
  std::int64_t n = 0, k = 0;
  Buffer cells;
  Buffer scales;       ///< fp32 [blocks, n padded to 32]
  Buffer zero_points;  ///< of asymmetric schemes: bytes, as scales

  Device device() const { return cells.device(); }
  std::size_t byte_size() const { return cells.size() + scales.size() + zero_points.size(); }
};

/// Whether products of int8 activations take weights of the scheme.
bool can_prepare_int4(const Scheme& scheme, std::int64_t n, std::int64_t k);
Int4Weight prepare_int4(const DeviceQuantized& q, Stream stream);
/// The exact inverse: the canonical bytes, bit for bit.
DeviceQuantized unprepare_int4(const Int4Weight& w, Stream stream);

/// y [m, n], contiguous columns: fp32, fp16, bf16, or int8 of
///   convert(activate(scale_x[m] * sum over blocks of scale_w[n, block] * (exact sum of the block) + bias[n]) + residual[m, n]),
/// with the bits that the CPU's matmul gives where there is no GELU or SiLU. x: symmetric, in rows. options.kernel: a row of
/// int4_matmul_kernel_names().
void matmul(const Int8Matrix& x, const Int4Weight& w, const Tensor& y, Stream stream, const Int8MatmulOptions& options = {});

/// The rows of the table: Hopper's tiles, those for mma.sync (compute capability 8.0 and later), and dp4a (any device).
std::vector<std::string> int4_matmul_kernel_names();
/// The rows for x [m, k] in int8 times a weight [n, k] of a scheme, on a Hopper of so many multiprocessors; needs
/// no device. Empty in a build without CUDA, and for schemes that these products do not take.
std::vector<MatmulChoice> explain_int4_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight,
                                              int multiprocessors = 132);

}  // namespace narrow::cuda
