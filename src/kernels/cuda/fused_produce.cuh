#pragma once
/// From the staged inputs of kRows rows to the fp32 values that are quantized, 32 in a lane for each row (fused_rows.cuh).

#include "kernels/cuda/fused_stage.cuh"

namespace narrow::cuda {

/// What the warps of a thread block tell one another.
template <int kRows>
struct alignas(16) Exchange {
  double sums[2][kRows][kMostSegments];  // two rounds; zeros behind the last segment
  std::uint32_t maxima[kRows][kMostSegments], finite[kRows][1][kMostSegments];
};

/// Zeros behind the last segment; the next barrier makes them seen.
template <int kRows>
__device__ inline void clear_sums(const FusedArgs& args, Exchange<kRows>& exchange) {
  if (threadIdx.x < kMostSegments && lane_id() >= args.segments) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) exchange.sums[0][r][lane_id()] = exchange.sums[1][r][lane_id()] = 0.0;
  }
}

/// The largest of each value over the thread block.
template <int kValues>
__device__ inline void block_largest(std::uint32_t (&values)[kValues], const FusedArgs& args, int segment,
                                     std::uint32_t (&maxima)[kValues][kMostSegments]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    values[i] = __reduce_max_sync(0xFFFFFFFFu, values[i]);
    if (lane_id() == 0) maxima[i][segment] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = __reduce_max_sync(0xFFFFFFFFu, lane_id() < args.segments ? maxima[i][lane_id()] : 0u);
}

/// mean_from_sum where nothing shorter will do: out of the way of the registers.
__device__ __noinline__ inline float mean_exactly(double sum, std::int64_t count) { return mean_from_sum(sum, count); }

/// The mean of a row from its segments' sums, in the order of row_sum.
__device__ inline float row_mean(const FusedArgs& args, const double (&mine)[kMostSegments]) {
  double total = 0.0;
#pragma unroll 1
  for (int i = 0; i < args.segments; i += 4) {
    const double2 two = *reinterpret_cast<const double2*>(mine + i), more = *reinterpret_cast<const double2*>(mine + i + 2);
    total = __dadd_rn(__dadd_rn(__dadd_rn(__dadd_rn(total, two.x), two.y), more.x), more.y);
  }
  // mean_from_sum without its division: the quotient is within 2^-51 of the product, so where the product's neighbours round to one
  // fp32, the quotient does too.
  const double product = __dmul_rn(total, args.inverse_columns);
  if (args.exact_inverse) return __double2float_rn(product);
  const float low = __double2float_rn(__dmul_rn(product, 1.0 - 0x1p-50)), high = __double2float_rn(__dmul_rn(product, 1.0 + 0x1p-50));
  return low == high ? low : mean_exactly(total, args.problem.fused.cols);
}

/// Lane r's value for row r, to all lanes.
template <int kRows>
__device__ inline void spread_rows(float mine, float (&all)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) all[r] = kRows == 1 ? mine : __shfl_sync(0xFFFFFFFFu, mine, r);
}

/// The rows' factors 1 / sqrt(mean + epsilon) and, of LayerNorm, their means.
template <FusedOp kOp, DType kType, Case kCase, int kRows>
__device__ inline void norm_statistics(const FusedArgs& args, const unsigned char* stage, int segment, Exchange<kRows>& exchange,
                                       float (&mean)[kRows], float (&factor)[kRows]) {
  const int left = static_cast<int>(args.problem.fused.cols) - segment * kSegment;
  clear_sums(args, exchange);
  float v[kRows][kSteps];
#pragma unroll
  for (int r = 0; r < kRows; ++r) read_chain<kType>(stage + r * stage_bytes(kType), v[r]);
  if constexpr (kOp == FusedOp::kLayerNorm) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) sum = __fadd_rn(sum, v[r][j]);
      sum = fold_chains<kType>(sum);
      if (lane_id() == 0) exchange.sums[1][r][segment] = static_cast<double>(sum);
    }
    __syncthreads();
    spread_rows(row_mean(args, exchange.sums[1][lane_id() % kRows]), mean);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) v[r][j] = __fadd_rn(v[r][j], -mean[r]);
      if (!is_whole(kCase) && left < kSegment) {  // the row ends here
#pragma unroll
        for (int j = 0; j < kSteps; ++j)
          if (32 * j + chain_id<kType>() >= left) v[r][j] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) sum = __fmaf_rn(v[r][j], v[r][j], sum);
    sum = fold_chains<kType>(sum);
    if (lane_id() == 0) exchange.sums[0][r][segment] = static_cast<double>(sum);
  }
  __syncthreads();
  const float variance = row_mean(args, exchange.sums[0][lane_id() % kRows]);
  spread_rows(__fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, args.problem.fused.epsilon))), factor);
}

/// y: zeros behind the last column. kStagesWeights: the weights follow the inputs in the stage.
template <FusedOp kOp, DType kType, Case kCase, bool kStagesWeights, int kRows>
__device__ inline void produce(const FusedArgs& args, const unsigned char* stage, int segment, Exchange<kRows>& exchange,
                               float (&y)[kRows][kChunks][8]) {
  const FusedProblem& fused = args.problem.fused;
  const int columns = static_cast<int>(fused.cols), first = segment * kSegment + 8 * lane_id();
  float mean[kRows] = {}, factor[kRows] = {};
  if constexpr (is_norm(kOp)) norm_statistics<kOp, kType, kCase>(args, stage, segment, exchange, mean, factor);
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    float weight[8], bias[8];
    if constexpr (kStagesWeights)
      read_chunk<kType>(stage + kRows * stage_bytes(kType), k, weight);
    else if constexpr (is_norm(kOp))
      read_weights<kType, kCase>(fused, fused.weight, first, k, 1.0f, weight);
    if constexpr (kOp == FusedOp::kLayerNorm) read_weights<kType, kCase>(fused, fused.bias, first, k, 0.0f, bias);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float(&v)[8] = y[r][k];
      read_chunk<kType>(stage + r * stage_bytes(kType), k, v);
      float up[8];
      if constexpr (kOp == FusedOp::kSiluMul) read_chunk<kType>(stage + (kRows + r) * stage_bytes(kType), k, up);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if constexpr (kOp == FusedOp::kLayerNorm) v[i] = __fmaf_rn(__fmul_rn(__fadd_rn(v[i], -mean[r]), factor[r]), weight[i], bias[i]);
        if constexpr (kOp == FusedOp::kRmsNorm || kOp == FusedOp::kAddRmsNorm) v[i] = __fmul_rn(__fmul_rn(v[i], factor[r]), weight[i]);
        if constexpr (kOp == FusedOp::kSiluMul) v[i] = __fmul_rn(silu_f32(v[i]), up[i]);
        if constexpr (kOp == FusedOp::kGelu) v[i] = gelu_f32(v[i]);
        if constexpr (kOp == FusedOp::kGeluTanh) v[i] = gelu_tanh_f32(v[i]);
      }
      if (is_norm(kOp) && !is_whole(kCase) && first + 256 * k + 8 > columns) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (first + 256 * k + i >= columns) v[i] = 0.0f;
      }
    }
  }
}

}  // namespace narrow::cuda
