/// Attention of single rows with the bits of the CPU's, where both are asked for them (AttentionProblem::in_fp64 of kernels/attention.h).
/// Scores and weighted values are sums in fp64, whose order shows in the last bits of an fp64 alone, rounded once to fp32; weights are
/// fp32 by operations in a written order.
/// Mapping:  a thread block per row and query head; groups of `lanes` lanes take a key at a time, 8 elements each. The largest score is
///           known before anything is weighed, as on the CPU: scores of more keys than are kept are computed twice.
/// Requires: keys and values of the row's own position are in the cache (place_heads.cu).
/// Bound:    conversions to fp64, 16 per clock and multiprocessor.

#include "format/elementary.h"
#include "kernels/cuda/decoder/attend_rows.cuh"
#include "kernels/cuda/decoder/exact.h"
#include "kernels/cuda/decoder/place_head.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kChunk = 4096;

/// The sum over the `lanes` lanes of a group.
__device__ double group_sum(double x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

/// exp_below_zero of kernels/cpu/attention.inl.
__device__ float exp_below_zero(float x) {
  using C = ExpConstants;
  const float shifted = __fmaf_rn(x, C::kLog2e, C::kRound), n = __fadd_rn(shifted, -C::kRound);
  const float r = __fadd_rn(__fadd_rn(x, -__fmul_rn(n, C::kLn2High)), -__fmul_rn(n, C::kLn2Low));
  float p = __fmaf_rn(C::kC4, r, C::kC3);
  p = __fmaf_rn(p, r, C::kC2);
  p = __fmaf_rn(p, r, C::kC1);
  p = __fmaf_rn(p, r, C::kC0);
  const float mantissa = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), p, r), 1.0f);
  const float result = __uint_as_float(__float_as_uint(mantissa) + (__float_as_uint(shifted) << 23));
  return x < C::kLowest ? 0.0f : (x == x ? result : x);
}

/// Eight elements of a row of the cache, the scale included.
template <CacheKind kKind>
__device__ void load_eight(const CacheView& cache, std::int64_t row, int pitch, int element, float (&x)[8]) {
  Eight<kKind>::load(cache.codes, row * pitch + element).unpack(x);
  if constexpr (has_scales(kKind)) {
    const float scale = cache.scales[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], scale);
  }
}

template <CacheKind kKind>
__global__ void __launch_bounds__(kThreads) attend_exact(const AttendProblem p, int lanes) {
  __shared__ float scores[kChunk], largest_of[kWarps];  // scores: of a chunk of keys, then their weights
  __shared__ double parts[kThreads][8], total_of[kWarps];
  AttendTask task(p, 1, 1);
  begin_after_earlier_kernels();
  const CacheView cache = task.find_keys(p, 1);
  const HeadsShape& shape = p.shape;
  const int thread = static_cast<int>(threadIdx.x), pitch = shape.pitch(), element = thread % lanes * 8, group = thread / lanes,
            groups = kThreads / lanes;
  const bool has_elements = element < pitch, keeps_scores = task.stop - task.begin <= kChunk;
  double q[8] = {}, sums[8] = {}, total = 0.0;
  if (has_elements) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      q[i] = static_cast<double>(load_value(p.q, p.q_type, (std::int64_t{task.row} * shape.heads + task.head) * pitch + element + i));
  }
  // All threads go through all chunks together. Gives the keys of the chunk.
  const auto score_chunk = [&](int base) {
    const int count = min(kChunk, task.stop - base);
    for (int first = 0; first < count; first += groups) {
      const int i = first + group;
      float k[8] = {};
      if (has_elements && i < count) load_eight<kKind>(cache, task.keys + base + i, pitch, element, k);
      double score = 0.0;
#pragma unroll
      for (int e = 0; e < 8; ++e) score = fma(q[e], static_cast<double>(k[e]), score);
      score = group_sum(score, lanes);
      if (element == 0 && i < count) scores[i] = static_cast<float>(score);
    }
    __syncthreads();
    return count;
  };

  float largest = -INFINITY;
  for (int base = task.begin; base < task.stop; base += kChunk) {
    const int count = score_chunk(base);
    for (int i = thread; i < count; i += kThreads) largest = fmaxf(largest, scores[i]);
    if (!keeps_scores) __syncthreads();
  }
  largest = warp_max(largest);
  if (thread % 32 == 0) largest_of[thread / 32] = largest;
  __syncthreads();
  for (const float other : largest_of) largest = fmaxf(largest, other);

  for (int base = task.begin; base < task.stop; base += kChunk) {
    const int count = keeps_scores ? task.stop - base : score_chunk(base);
    for (int i = thread; i < count; i += kThreads) {
      scores[i] = exp_below_zero(__fmul_rn(__fadd_rn(scores[i], -largest), p.scale));
      total += static_cast<double>(scores[i]);
    }
    __syncthreads();
    for (int i = group; i < count; i += groups) {
      float v[8] = {};
      if (has_elements) load_eight<kKind>(cache, task.values + base + i, pitch, element, v);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[e] = fma(static_cast<double>(scores[i]), static_cast<double>(v[e]), sums[e]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) parts[thread][e] = sums[e];
  total = group_sum(total, 32);
  if (thread % 32 == 0) total_of[thread / 32] = total;
  __syncthreads();
  total = 0.0;
  for (const double other : total_of) total += other;
  const std::int64_t to = (std::int64_t{task.row} * shape.heads + task.head) * shape.head_dim;
  for (int d = thread; d < shape.head_dim; d += kThreads) {
    double sum = 0.0;
    for (int g = 0; g < groups; ++g) sum += parts[g * lanes + d / 8][d % 8];
    store_value(p.out, p.out_type, to + d, static_cast<float>(sum / total));
  }
}

}  // namespace

int launch_attend_exact(const AttendProblem& problem, Stream stream) {
  const HeadsShape& shape = problem.shape;
  if (shape.head_dim > kMostHeadDim || problem.places) return cudaErrorInvalidValue;
  const auto run = [&](auto kernel) {
    return launch_chained(kernel, attend_blocks(shape, 1, 1), kThreads, 0, 1, stream, problem, lanes_of(shape));
  };
  switch (shape.kind) {
    case CacheKind::kFp32: return run(attend_exact<CacheKind::kFp32>);
    case CacheKind::kFp16: return run(attend_exact<CacheKind::kFp16>);
    case CacheKind::kBf16: return run(attend_exact<CacheKind::kBf16>);
    case CacheKind::kE4m3: return run(attend_exact<CacheKind::kE4m3>);
    case CacheKind::kInt8: return run(attend_exact<CacheKind::kInt8>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace narrow::cuda
