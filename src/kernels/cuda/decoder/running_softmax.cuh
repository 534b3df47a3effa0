#pragma once
/// A softmax over keys as they come, of kHeads queries at a time; each lane has eight elements of the values.

#include <cuda_runtime.h>

namespace narrow::cuda {

constexpr float kLog2e = 1.44269504f, kLowest = -1e30f;

/// Sums of one softmax: the largest score so far, the sum of weights, the weighted values.
template <int kHeads>
struct Running {
  float largest[kHeads], total[kHeads], values[kHeads][8];
};

/// Counts kAhead keys in; those with a score of minus infinity weigh nothing.
template <int kHeads, int kAhead>
__device__ void count_in(Running<kHeads>& sums, int h, const float (&scores)[kAhead], const float (&v)[kAhead][8],
                         const float (&value_scale)[kAhead]) {
  float largest = sums.largest[h];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) largest = fmaxf(largest, scores[u]);
  const float scale = exp2f(sums.largest[h] - largest);
  sums.largest[h] = largest;
  sums.total[h] *= scale;
#pragma unroll
  for (int i = 0; i < 8; ++i) sums.values[h][i] *= scale;
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    const float weight = exp2f(scores[u] - largest), weighted = weight * value_scale[u];
    sums.total[h] += weight;
#pragma unroll
    for (int i = 0; i < 8; ++i) sums.values[h][i] = fmaf(weighted, v[u][i], sums.values[h][i]);
  }
}

/// Joins the softmax of the lanes `offset` away.
template <int kHeads>
__device__ void join(Running<kHeads>& mine, int offset) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, mine.largest[h], offset), largest = fmaxf(mine.largest[h], other);
    const float scale = exp2f(mine.largest[h] - largest), other_scale = exp2f(other - largest);
    mine.total[h] = mine.total[h] * scale + __shfl_xor_sync(0xFFFFFFFFu, mine.total[h], offset) * other_scale;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      mine.values[h][i] = mine.values[h][i] * scale + __shfl_xor_sync(0xFFFFFFFFu, mine.values[h][i], offset) * other_scale;
    mine.largest[h] = largest;
  }
}

}  // namespace narrow::cuda
