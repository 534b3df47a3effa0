#pragma once
/// The fused neighbours of a product: the problem, and the rows of their table.

#include <cstdint>
#include <span>

#include "device/cpu_features.h"
#include "narrow/fused.h"
#include "narrow/tensor.h"

namespace narrow {

struct FusedProblem {
  FusedOp op = FusedOp::kIdentity;
  DType dtype = DType::kF32;  ///< of x, other and residual: kF32, kF16, kBf16
  std::int64_t rows = 0, cols = 0;
  const void* x = nullptr;      ///< [rows, cols], columns contiguous
  std::int64_t x_stride = 0;    ///< in elements
  const void* other = nullptr;  ///< kSiluMul: up; kAddRmsNorm: the residual before
  std::int64_t other_stride = 0;
  void* residual = nullptr;  ///< kAddRmsNorm: the residual after, with other_stride; may be `other`
  DType weight_dtype = DType::kF32;
  const void* weight = nullptr;  ///< [cols]; null: ones
  const void* bias = nullptr;    ///< [cols]; null: zeros
  float epsilon = 1e-5f;
};

namespace cpu {
struct ElementPlan;  // kernels/cpu/quantize/plan.h
}

/// What the first pass of a norm over a row found. A thread hands it from row to row: a row's first pass runs before the row above it is
/// encoded, so that neither waits for the end of the other's sums.
struct FirstPass {
  std::int64_t row = -1;  ///< -1: none
  float value = 0.0f;     ///< RMSNorm: 1 / sqrt(mean of squares + epsilon); LayerNorm: the mean
};

/// The quantization of rows in the usual case: symmetric int8 or fp8 with dynamic fp32 scales, nearest even.
struct FusedFinish {
  std::int64_t cols = 0;
  std::int64_t block = 0;  ///< columns of a scale: cols, or a multiple of 64
  const cpu::ElementPlan* element = nullptr;
  float largest = 0.0f;           ///< value of the element
  float* scales = nullptr;        ///< from the first row on
  std::uint8_t* codes = nullptr;  ///< [.., cols], from the first row on
  bool around_caches = false;     ///< the codes of all rows will not fit into caches
  std::int64_t end = 0;           ///< of the thread's rows
  FirstPass* first = nullptr;     ///< norms: of the first row or none; afterwards of the row after the last, or none
};

/// A row of the table. run writes the fp32 rows [row_begin, row_end) that are to be quantized to y [.., cols], contiguous, which
/// a quantize kernel then reads from the first-level cache. Pure: no allocation, no exception; rows are independent.
struct FusedKernel {
  const char* name;
  Isa isa;
  bool (*accepts)(const FusedProblem&);
  void (*run)(const FusedProblem&, std::int64_t row_begin, std::int64_t row_end, float* y);
  /// Produces and quantizes rows [row_begin, row_end) and returns row_end, or the first of them that the general quantizer must do, from
  /// the row in y: a value is not finite, or a scale lies beyond 2^-60 .. 2^60. Null where there is none.
  std::int64_t (*quantize)(const FusedProblem&, std::int64_t row_begin, std::int64_t row_end, const FusedFinish&, float* y);
  void (*fence)();  ///< after the last row of a thread; null where quantize is
};

/// The rows, best first; the last is the reference, which takes everything.
std::span<const FusedKernel> fused_kernels();

namespace reference {
extern const FusedKernel kFused;
}  // namespace reference

}  // namespace narrow
