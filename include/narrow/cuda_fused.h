#pragma once
/// The fused neighbours and the layouts of narrow/fused.h and narrow/layout.h on CUDA devices, bit for bit the CPU's. Streams are
/// arguments, nothing waits or allocates (but for allocate_fused), and all calls can be captured into a graph.

#include <string>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"
#include "narrow/fused.h"
#include "narrow/layout.h"

namespace narrow::cuda {

/// Where codes and scales go, in device memory.
struct FusedOutput {
  Scheme scheme;  ///< int8 or fp8_e4m3, fp32 scales: row, block128, or tensor with static scales
  Shape shape;
  Layout layout = Layout::kRow;  ///< or kCol32, of int8
  /// Block scales as [blocks of a row, rows padded to a multiple of 4], the padding zero: what a block-scaled FP8 product
  /// reads by TMA. Rows are counted over all matrices.
  bool transposed_scales = false;
  Buffer codes;
  Buffer scales;
};

/// Rows of transposed scales: a multiple of 4, so that every column of scales is 16-byte aligned.
constexpr std::int64_t padded_scale_rows(std::int64_t rows) { return (rows + 3) / 4 * 4; }

FusedOutput allocate_fused(const Scheme& scheme, const Shape& shape, Device device, Layout layout = Layout::kRow,
                           bool transposed_scales = false);  ///< uninitialised memory for what fused_quantize writes

/// fused_quantize of narrow/fused.h; all tensors of `input` are on the device. The columns of x and of the second tensor are
/// contiguous and their rows evenly spaced. Static scales must be positive and finite (not checked). Where the sum of x and
/// the residual is NaN, the new residual is a NaN of unspecified sign and payload.
void fused_quantize(const FusedInput& input, const FusedOutput& out, Stream stream, std::string_view kernel = {});

/// The rows of the table, best first.
std::vector<std::string> fused_quantize_kernel_names();

/// transform of narrow/layout.h for elements of one byte: `data` holds the matrices of `shape` in `from`, `result` gets them in
/// `to`; contiguous, of matrices * layout_size(...) bytes each, and not overlapping.
void transform(const Tensor& data, const Tensor& result, const Shape& shape, Layout from, Layout to, Stream stream);

}  // namespace narrow::cuda
