#pragma once
/// Mixtures of experts between two norms: which rows go to which expert, their codes gathered by expert, and the experts' outputs put
/// together. All sizes but the numbers of rows per expert are known to the host, so that a captured step can be replayed.

#include "narrow/cuda.h"

namespace narrow::cuda {

constexpr int kMostExperts = 256;

/// Of every row the experts with the largest logits (of equal ones the first), logits = x * w^T, and its share of each: softmax over all
/// experts, or over those chosen. cols is a multiple of 4.
struct RouteProblem {
  const float* x = nullptr;  ///< [rows, cols]
  const float* w = nullptr;  ///< [experts, cols]
  std::int64_t rows = 0, cols = 0;
  int experts = 0, per_token = 0;
  bool shares_sum_to_one = true;
  float* logits = nullptr;         ///< [rows, experts]
  std::int32_t* chosen = nullptr;  ///< [rows, per_token], the likeliest first
  float* shares = nullptr;         ///< of the same shape
};
int launch_route(const RouteProblem& problem, Stream stream);

/// The choices of all rows by expert, and for each expert in the order of rows.
struct RouteOrder {
  const std::int32_t* chosen = nullptr;  ///< [choices]
  std::int64_t choices = 0;              ///< rows * per_token
  int experts = 0, per_token = 0;
  std::int32_t* offsets = nullptr;   ///< [experts + 1]: where each expert's choices begin
  std::int32_t* row_of = nullptr;    ///< [choices] in the new order: whose choice it is
  std::int32_t* place_of = nullptr;  ///< [choices] in the old order: where it stands in the new one
};
int launch_order_routes(const RouteOrder& order, Stream stream);

/// Codes of one byte [.., cols] and their scales, [rows] or transposed [scale_blocks, rows padded to 4], of the rows that row_of names.
/// cols is a multiple of 16.
struct GatherCodes {
  std::int64_t rows = 0, cols = 0;  ///< of the result
  const std::int32_t* row_of = nullptr;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  int scale_blocks = 1;
  std::int64_t scale_rows = 0, new_scale_rows = 0;  ///< from block to block
  std::byte* new_codes = nullptr;
  float* new_scales = nullptr;
};
int launch_gather_codes(const GatherCodes& gather, Stream stream);

/// stream[row] += sum over its choices of share * y[place_of[choice]], in the order of choices. cols is a multiple of 4.
struct CombineExperts {
  std::int64_t rows = 0, cols = 0;
  int per_token = 0;
  const void* y = nullptr;  ///< [rows * per_token, cols], fp32 or fp16
  DType y_type = DType::kF32;
  const std::int32_t* place_of = nullptr;
  const float* shares = nullptr;
  float* stream = nullptr;
};
int launch_combine_experts(const CombineExperts& combine, Stream stream);

}  // namespace narrow::cuda
