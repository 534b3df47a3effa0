#pragma once
/// The CUDA rows of the fused neighbours and of layouts: plain problems on device pointers.

#include <cstdint>
#include <span>

#include "kernels/cuda/elements.cuh"
#include "kernels/fused.h"
#include "narrow/cuda.h"
#include "narrow/layout.h"

namespace narrow::cuda {

/// Where a row's scales lie, or come from: element row * row_step + block * block_step.
struct ScaleSteps {
  std::int64_t row_step = 0, block_step = 0;
};

/// All pointers are device memory.
struct FusedQuantizeProblem {
  FusedProblem fused;                ///< at least one row and one column
  Element element = Element::kInt8;  ///< kInt8 or kE4m3
  bool per_block = false;            ///< one scale per 1x128 block, else per row (or one, where it is given)
  std::uint8_t* codes = nullptr;
  std::int64_t row_bytes = 0;
  bool col32 = false;  ///< codes in COL32, matrix by matrix
  std::int64_t matrix_rows = 0;
  float* scales = nullptr;
  ScaleSteps steps;              ///< of scales
  std::int64_t scale_rows = 0;   ///< transposed scales: the padded number of rows; the padding is zero. Else `rows`
  const float* given = nullptr;  ///< static scales
  ScaleSteps given_steps;
};

/// A row of the table. launch enqueues and returns CUDA's error code; it never waits or allocates.
struct FusedQuantizeKernel {
  const char* name;
  bool (*accepts)(const FusedQuantizeProblem&);
  int (*launch)(const FusedQuantizeProblem&, Stream);
};

/// Best first; the last row takes everything. Empty in a build without CUDA.
std::span<const FusedQuantizeKernel> fused_quantize_kernels();
extern const FusedQuantizeKernel kFusedRows, kFusedGeneric;

/// The parts of kFusedRows: one file per input type.
int launch_fused_rows_f32(const FusedQuantizeProblem& problem, Stream stream);
int launch_fused_rows_f16(const FusedQuantizeProblem& problem, Stream stream);
int launch_fused_rows_bf16(const FusedQuantizeProblem& problem, Stream stream);

/// Bytes from one layout to another: `matrices` matrices of rows x cols, one after the other. Padding is written as zeros.
struct TransformProblem {
  const std::uint8_t* in = nullptr;
  std::uint8_t* out = nullptr;
  std::int64_t matrices = 1, rows = 0, cols = 0;
  Layout from = Layout::kRow, to = Layout::kRow;
};
int launch_transform(const TransformProblem& problem, Stream stream);

}  // namespace narrow::cuda
