/// Sums over rows of logits. Bound: memory, or the second-level cache, where the second pass over a row finds it.

#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xFFFFFFFFu;

struct Largest {
  float value;
  int index;
};
__device__ Largest larger(Largest a, Largest b) { return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a; }

__device__ Largest warp_largest(Largest x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = larger(x, {__shfl_xor_sync(kAll, x.value, apart), __shfl_xor_sync(kAll, x.index, apart)});
  return x;
}

__device__ double warp_sum(double x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(kAll, x, apart);
  return x;
}

/// A thread block per row. A thread adds up every 512th term in fp32; the threads' sums are added up in fp64.
__global__ void __launch_bounds__(kThreads) score_rows(const ScoreProblem p) {
  __shared__ Largest tops[kWarps];
  __shared__ double totals[kWarps], differences[kWarps];
  begin_after_earlier_kernels();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = static_cast<int>(p.vocabulary);
  const std::int64_t offset = p.rows_of[blockIdx.x] * p.vocabulary;
  const float* x = p.x + offset;
  const float* y = p.y != nullptr ? p.y + offset : x;

  Largest top{-INFINITY, count - 1};
  for (int i = threadIdx.x; i < count; i += kThreads) top = larger(top, {x[i], i});
  top = warp_largest(top);
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  top = warp_largest(tops[lane % kWarps]);

  float total = 0.0f, difference = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const float value = x[i], e = expf(value - top.value);
    total += e;
    difference = fmaf(e, value - y[i], difference);
  }
  const double whole = warp_sum(static_cast<double>(total)), apart = warp_sum(static_cast<double>(difference));
  if (lane == 0) totals[warp] = whole, differences[warp] = apart;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0.0, product = 0.0;
  for (int i = 0; i < kWarps; ++i) sum += totals[i], product += differences[i];
  p.sums[blockIdx.x] = {static_cast<double>(top.value) + log(sum), product / sum, top.index};
  p.logits[blockIdx.x] = x[p.tokens[blockIdx.x]];
}

}  // namespace

int launch_score(const ScoreProblem& problem, Stream stream) {
  return launch_chained(score_rows, problem.rows, kThreads, 0, 1, stream, problem);
}

}  // namespace narrow::cuda
