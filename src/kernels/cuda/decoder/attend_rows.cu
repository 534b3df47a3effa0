/// Attention of single rows: the decode step, and short prompts.
/// Mapping:  a cluster per row, key head and up to kHeads of its query heads; its thread blocks take equal runs of keys. Within one, a
/// group
///           of `lanes` lanes has 8 elements of a key each and takes every so-many-th key, kAhead at a time, with a running softmax of its
///           own. Softmaxes meet by shuffles, in shared memory, and in the cluster's shared memory, each time in one order.
///           Of a decode step q, k and v come straight from the product: every thread block turns its queries, and the last one of the
///           cluster puts the new key and value into the cache and counts them in.
/// Requires: else keys and values of the row's own position are in the cache (place_heads.cu).
/// Bound:    the bytes of keys and values. Meaning: kernels/reference/attention.cc.

#include <cooperative_groups.h>

#include "kernels/cuda/decoder/place_head.cuh"
#include "kernels/cuda/decoder/running_softmax.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kMostSplits = 8;

template <int kHeads>
struct Shared {
  float largest[kWarps][kHeads], total[kWarps][kHeads], values[kWarps][kHeads][kMostHeadDim];
  float block_largest[kHeads], block_total[kHeads], block_values[kHeads][kMostHeadDim];
};

template <CacheKind kKind, int kHeads>
__global__ void __launch_bounds__(kThreads) attend_rows(const AttendProblem p, int lanes, int splits) {
  __shared__ Shared<kHeads> shared;
  constexpr int kAhead = kHeads == 1 ? 4 : 2;
  const HeadsShape& shape = p.shape;
  const int group = shape.heads / shape.kv_heads, passes = (group + kHeads - 1) / kHeads;
  const int split = static_cast<int>(blockIdx.x) % splits;
  int task = static_cast<int>(blockIdx.x) / splits;
  const int pass = task % passes;
  task /= passes;
  const int kv = task % shape.kv_heads, row = task / shape.kv_heads;
  const int live = min(kHeads, group - pass * kHeads), head = kv * group + pass * kHeads;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, pitch = shape.pitch();
  const int element = lane % lanes * 8, groups = kThreads / lanes;
  const bool has_elements = element < pitch;
  begin_after_earlier_kernels();

  const CacheView cache = shape.caches[shape.sequences[row]];
  const int position = shape.positions[row], end = p.places ? position : position + 1;  // of the keys in the cache
  const int first = p.window > 0 ? max(0, position + 1 - p.window) : 0;
  const int share = (end - first + splits - 1) / splits, begin = first + split * share, stop = min(end, begin + share);
  const std::int64_t keys = cache.row(shape.layer, 0, shape.kv_heads, kv, 0), values = cache.row(shape.layer, 1, shape.kv_heads, kv, 0);
  float q[kHeads][8];
  Running<kHeads> sums;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    sums.largest[h] = kLowest;
    sums.total[h] = 0.0f;
    const int own = head + min(h, live - 1);
    if (p.places) {
      place_head(p.place, row, own, p.place.q_norm, p.place.q_norm != nullptr, true, element, lanes, q[h]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        q[h][i] = has_elements ? load_value(p.q, p.q_type, (std::int64_t{row} * shape.heads + own) * pitch + element + i) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[h][i] *= p.scale * kLog2e;
      sums.values[h][i] = 0.0f;
    }
  }

  for (int base = begin + static_cast<int>(threadIdx.x) / lanes; base - static_cast<int>(threadIdx.x) / lanes < stop;
       base += groups * kAhead) {
    float k[kAhead][8], v[kAhead][8], key_scale[kAhead], value_scale[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int key = min(base + u * groups, stop - 1);
#pragma unroll
      for (int i = 0; i < 8; ++i) k[u][i] = v[u][i] = 0.0f;
      if (has_elements) {
        Eight<kKind>::load(cache.codes, (keys + key) * pitch + element).unpack(k[u]);
        Eight<kKind>::load(cache.codes, (values + key) * pitch + element).unpack(v[u]);
      }
      key_scale[u] = has_scales(kKind) ? cache.scales[keys + key] : 1.0f;
      value_scale[u] = has_scales(kKind) ? cache.scales[values + key] : 1.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float scores[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) score = fmaf(q[h][i], k[u][i], score);
        score = group_sum(score, lanes);
        scores[u] = base + u * groups < stop ? score * key_scale[u] : -INFINITY;
      }
      count_in<kHeads, kAhead>(sums, h, scores, v, value_scale);
    }
  }
  if (p.places && split == splits - 1 && warp == 0) {  // the row's own key and value: of the first group of lanes
    float k[8], v[1][8];
    place_head(p.place, row, shape.heads + kv, p.place.k_norm, p.place.k_norm != nullptr, true, element, lanes, k);
    place_head(p.place, row, shape.heads + shape.kv_heads + kv, nullptr, false, false, element, lanes, v[0]);
    const bool writes = pass == 0 && lane < lanes && has_elements;
    round_to_cache<kKind>(cache, keys + position, pitch, element, lanes, writes, k);
    round_to_cache<kKind>(cache, values + position, pitch, element, lanes, writes, v[0]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) score = fmaf(q[h][i], k[i], score);
      score = group_sum(score, lanes);
      const float scores[1] = {lane < lanes ? score : -INFINITY}, one[1] = {1.0f};
      count_in<kHeads, 1>(sums, h, scores, v, one);
    }
  }

  // Groups of a warp, then warps, then thread blocks.
  for (int offset = lanes; offset < 32; offset *= 2) join(sums, offset);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane < lanes && has_elements) {
#pragma unroll
      for (int i = 0; i < 8; ++i) shared.values[warp][h][element + i] = sums.values[h][i];
    }
    if (lane == 0) shared.largest[warp][h] = sums.largest[h], shared.total[warp][h] = sums.total[h];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < live * shape.head_dim; i += kThreads) {
    const int h = i / shape.head_dim, d = i % shape.head_dim;
    float largest = shared.largest[0][h], total = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, shared.largest[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float scale = exp2f(shared.largest[w][h] - largest);
      total += shared.total[w][h] * scale;
      value += shared.values[w][h][d] * scale;
    }
    shared.block_values[h][d] = value;
    if (d == 0) shared.block_largest[h] = largest, shared.block_total[h] = total;
  }
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  if (splits > 1)
    cluster.sync();
  else
    __syncthreads();
  const std::int64_t to = (std::int64_t{row} * shape.heads + head) * shape.head_dim;
  for (int i = split * kThreads + static_cast<int>(threadIdx.x); i < live * shape.head_dim; i += splits * kThreads) {
    const int h = i / shape.head_dim, d = i % shape.head_dim;
    float largest = kLowest, total = 0.0f, value = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const Shared<kHeads>* other = splits > 1 ? cluster.map_shared_rank(&shared, s) : &shared;
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

template <int kHeads>
int launch(const AttendProblem& problem, int lanes, int splits, Stream stream) {
  const HeadsShape& shape = problem.shape;
  const int group = shape.heads / shape.kv_heads;
  const std::int64_t blocks = std::int64_t{shape.rows} * shape.kv_heads * ((group + kHeads - 1) / kHeads) * splits;
  const auto run = [&](auto kernel) { return launch_chained(kernel, blocks, kThreads, 0, splits, stream, problem, lanes, splits); };
  switch (shape.kind) {
    case CacheKind::kFp32:
      return run(attend_rows<CacheKind::kFp32, kHeads>);
    case CacheKind::kFp16:
      return run(attend_rows<CacheKind::kFp16, kHeads>);
    case CacheKind::kBf16:
      return run(attend_rows<CacheKind::kBf16, kHeads>);
    case CacheKind::kE4m3:
      return run(attend_rows<CacheKind::kE4m3, kHeads>);
    case CacheKind::kInt8:
      return run(attend_rows<CacheKind::kInt8, kHeads>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int launch_attend_rows(const AttendProblem& problem, Stream stream) {
  const HeadsShape& shape = problem.shape;
  if (shape.head_dim > kMostHeadDim) return cudaErrorInvalidValue;
  const int lanes = lanes_of(shape);
  int splits = 1;
  // Two thread blocks for each of about 130 multiprocessors keep memory busy.
  constexpr int kEnough = 256;
  while (splits < kMostSplits && shape.rows * shape.kv_heads * splits < kEnough) splits *= 2;
  return shape.heads == shape.kv_heads ? launch<1>(problem, lanes, splits, stream) : launch<4>(problem, lanes, splits, stream);
}

}  // namespace narrow::cuda
