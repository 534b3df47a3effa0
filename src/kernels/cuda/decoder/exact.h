#pragma once
/// What passes that keep fp32 (Compute::kFp32) have of their own: inputs as two fp16 values; attention, and norms and products of inputs
/// that are rounded, with the CPU's bits.

#include "kernels/cuda/decoder/decoder.h"

namespace narrow::cuda {

/// x [rows, cols] as two fp16 values each, x = high + 2^-11 low, which keep 22 bits: rows 2 i and 2 i + 1 of parts [2 rows, cols] are the
/// high and the low ones of row i. Values beyond fp16's range saturate.
int launch_split_rows(const float* x, std::int64_t rows, std::int64_t cols, void* parts, Stream stream);

/// What a product of such parts gives, as that of x: y[i] = sums[2 i] + 2^-11 (sums[2 i + 1] + low_sums[2 i]) + bias + residual[i].
struct JoinRowsProblem {
  std::int64_t rows = 0, cols = 0;
  const float* sums = nullptr;      ///< [2 rows, cols]
  const float* low_sums = nullptr;  ///< of what a weight has below its fp16 values, times 2^11, or null
  const float* bias = nullptr;      ///< [cols], or null
  const float* residual = nullptr;  ///< as y, or null
  float* y = nullptr;               ///< [rows, cols]
  std::int64_t pitch = 0;           ///< of y and residual
};
int launch_join_rows(const JoinRowsProblem& problem, Stream stream);

/// launch_rms_norm in fp32 with the CPU's bits.
int launch_rms_norm_exact(const NormProblem& problem, Stream stream);

/// y = x w^T + bias + residual, the product summed in fp64 and rounded once: the bits of the CPU's kernels where they do so, too.
struct ExactProductProblem {
  std::int64_t rows = 0, n = 0, k = 0;
  const float* x = nullptr;             ///< [rows, k]
  const float* w = nullptr;             ///< [n, k], or null and codes in its place:
  const std::uint8_t* codes = nullptr;  ///< fp8_e4m3 [n, k], k a multiple of 16, which stand for fp32 values: each times the scale
  const float* scales = nullptr;        ///< [output >> scale_row_shift, scale_pitch]: one of the row, or one of every 128 columns
  int scale_row_shift = 0;
  std::int64_t scale_pitch = 1;
  const float* bias = nullptr;      ///< [n], or null
  const float* residual = nullptr;  ///< as y, or null
  float* y = nullptr;               ///< [rows, n]
  std::int64_t pitch = 0;           ///< of y and residual
};
int launch_exact_product(const ExactProductProblem& problem, Stream stream);

/// launch_attend_rows of rows that are placed, slower, with the bits of the CPU's kernels where they sum in fp64.
int launch_attend_exact(const AttendProblem& problem, Stream stream);

}  // namespace narrow::cuda
