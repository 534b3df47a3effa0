/// The meaning of the fused neighbours: one obvious loop each. Never optimised.

#include "kernels/fused.h"

#include <bit>
#include <cmath>

#include "format/elementary.h"
#include "format/row_sum.h"
#include "kernels/storage.h"

namespace narrow::reference {
namespace {

bool accepts(const FusedProblem&) { return true; }

float weight_at(const FusedProblem& problem, std::int64_t col) {
  return problem.weight == nullptr ? 1.0f : load_value(problem.weight, problem.weight_dtype, col);
}

/// y holds x; becomes its norm.
void rms_norm(const FusedProblem& problem, float* y) {
  const auto join_square = [&](float sum, std::int64_t i) { return multiply_add(y[i], y[i], sum); };
  const float mean = mean_from_sum(row_sum(problem.cols, join_square), problem.cols);
  const float factor = 1.0f / std::sqrt(mean + problem.epsilon);
  for (std::int64_t i = 0; i < problem.cols; ++i) y[i] = (y[i] * factor) * weight_at(problem, i);
}

void layer_norm(const FusedProblem& problem, float* y) {
  const float mean = mean_from_sum(row_sum(problem.cols, [&](float sum, std::int64_t i) { return sum + y[i]; }), problem.cols);
  const auto join_square = [&](float sum, std::int64_t i) { return multiply_add(y[i] - mean, y[i] - mean, sum); };
  const float variance = mean_from_sum(row_sum(problem.cols, join_square), problem.cols);
  const float factor = 1.0f / std::sqrt(variance + problem.epsilon);
  for (std::int64_t i = 0; i < problem.cols; ++i) {
    const float bias = problem.bias == nullptr ? 0.0f : load_value(problem.bias, problem.weight_dtype, i);
    y[i] = multiply_add((y[i] - mean) * factor, weight_at(problem, i), bias);
  }
}

void run_row(const FusedProblem& problem, std::int64_t row, float* y) {
  const std::int64_t cols = problem.cols, x = row * problem.x_stride, other = row * problem.other_stride;
  for (std::int64_t i = 0; i < cols; ++i) y[i] = load_value(problem.x, problem.dtype, x + i);
  switch (problem.op) {
    case FusedOp::kIdentity: break;
    case FusedOp::kLayerNorm: layer_norm(problem, y); break;
    case FusedOp::kAddRmsNorm:
      for (std::int64_t i = 0; i < cols; ++i) {
        store_value(problem.residual, problem.dtype, other + i, y[i] + load_value(problem.other, problem.dtype, other + i));
        y[i] = load_value(problem.residual, problem.dtype, other + i);
      }
      rms_norm(problem, y);
      break;
    case FusedOp::kRmsNorm: rms_norm(problem, y); break;
    case FusedOp::kSiluMul:
      for (std::int64_t i = 0; i < cols; ++i) y[i] = silu_f32(y[i]) * load_value(problem.other, problem.dtype, other + i);
      break;
    case FusedOp::kGelu:
      for (std::int64_t i = 0; i < cols; ++i) y[i] = gelu_f32(y[i]);
      break;
    case FusedOp::kGeluTanh:
      for (std::int64_t i = 0; i < cols; ++i) y[i] = gelu_tanh_f32(y[i]);
      break;
  }
  // Backends make NaN with different signs; formats that keep NaN see this one.
  for (std::int64_t i = 0; i < cols; ++i)
    if (std::isnan(y[i])) y[i] = std::bit_cast<float>(0x7FC00000u);
}

void run(const FusedProblem& problem, std::int64_t row_begin, std::int64_t row_end, float* y) {
  for (std::int64_t row = row_begin; row < row_end; ++row) run_row(problem, row, y + (row - row_begin) * problem.cols);
}

}  // namespace

const FusedKernel kFused{"ref_fused", Isa::kScalar, accepts, run, nullptr, nullptr};

}  // namespace narrow::reference
