#pragma once
/// What the kernels of single rows' attention share: how softmaxes of warps and thread blocks meet.

#include <cooperative_groups.h>

#include "kernels/cuda/decoder/running_softmax.cuh"
#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {

/// Softmaxes of a thread block's parts, each of up to kHeads queries: the largest score, the sum of weights, the weighted values.
template <int kParts, int kHeads, int kDim>
struct AttendParts {
  float largest[kParts][kHeads], total[kParts][kHeads], values[kParts][kHeads][kDim];
  float block_largest[kHeads], block_total[kHeads], block_values[kHeads][kDim];
};

/// Joins the first `parts` softmaxes of the thread block, then those of the cluster's thread blocks, each time in order, and stores the
/// quotients of `live` heads from `head` on. The parts must be there for all threads, and all thread blocks of the cluster must come.
template <int kThreads, int kParts, int kHeads, int kDim>
__device__ void join_and_store(const AttendProblem& p, AttendParts<kParts, kHeads, kDim>& shared, int parts, int row, int head, int live,
                               int split, int splits) {
  const int head_dim = p.shape.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < live * head_dim; i += kThreads) {
    const int h = i / head_dim, d = i % head_dim;
    float largest = shared.largest[0][h], total = 0.0f, value = 0.0f;
    for (int part = 1; part < parts; ++part) largest = fmaxf(largest, shared.largest[part][h]);
    for (int part = 0; part < parts; ++part) {
      const float scale = exp2f(shared.largest[part][h] - largest);
      total += shared.total[part][h] * scale;
      value += shared.values[part][h][d] * scale;
    }
    shared.block_values[h][d] = value;
    if (d == 0) shared.block_largest[h] = largest, shared.block_total[h] = total;
  }
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  if (splits > 1)
    cluster.sync();
  else
    __syncthreads();
  const std::int64_t to = (std::int64_t{row} * p.shape.heads + head) * head_dim;
  for (int i = split * kThreads + static_cast<int>(threadIdx.x); i < live * head_dim; i += splits * kThreads) {
    const int h = i / head_dim, d = i % head_dim;
    float largest = kLowest, total = 0.0f, value = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const auto* other = splits > 1 ? cluster.map_shared_rank(&shared, s) : &shared;
      const float theirs = other->block_largest[h], next = fmaxf(largest, theirs), scale = exp2f(largest - next),
                  other_scale = exp2f(theirs - next);
      total = total * scale + other->block_total[h] * other_scale;
      value = value * scale + other->block_values[h][d] * other_scale;
      largest = next;
    }
    store_value(p.out, p.out_type, to + i, value / total);
  }
  if (splits > 1) cluster.sync();  // nobody leaves while its shared memory is read
}

/// Where a thread block of these kernels works: a row, a key head, some of its query heads, a run of its keys in the cache.
struct AttendTask {
  int split, pass, kv, row;
  int head, live;             ///< query heads [head, head + live)
  int position;               ///< the row's
  int begin, stop;            ///< keys
  std::int64_t keys, values;  ///< rows of the cache

  __device__ AttendTask(const AttendProblem& p, int most_heads, int splits) {
    const HeadsShape& shape = p.shape;
    const int group = shape.heads / shape.kv_heads, passes = (group + most_heads - 1) / most_heads;
    split = static_cast<int>(blockIdx.x) % splits;
    int task = static_cast<int>(blockIdx.x) / splits;
    pass = task % passes;
    task /= passes;
    kv = task % shape.kv_heads;
    row = task / shape.kv_heads;
    live = min(most_heads, group - pass * most_heads);
    head = kv * group + pass * most_heads;
  }
  /// What depends on memory that earlier kernels wrote.
  __device__ CacheView find_keys(const AttendProblem& p, int splits) {
    const HeadsShape& shape = p.shape;
    const CacheView cache = shape.caches[shape.sequences[row]];
    position = shape.positions[row];
    const int end = p.places ? position : position + 1, first = p.window > 0 ? max(0, position + 1 - p.window) : 0;
    const int share = (end - first + splits - 1) / splits;
    begin = first + split * share;
    stop = min(end, begin + share);
    keys = cache.row(shape.layer, 0, shape.kv_heads, kv, 0);
    values = cache.row(shape.layer, 1, shape.kv_heads, kv, 0);
    return cache;
  }
};

inline std::int64_t attend_blocks(const HeadsShape& shape, int most_heads, int splits) {
  const int group = shape.heads / shape.kv_heads;
  return std::int64_t{shape.rows} * shape.kv_heads * ((group + most_heads - 1) / most_heads) * splits;
}

/// attend_rows_mma.cu: heads of 64 and 128, caches of 8 and 16 bits.
bool takes_attend_rows_mma(const HeadsShape& shape);
int launch_attend_rows_mma(const AttendProblem& problem, Stream stream);

}  // namespace narrow::cuda
