/// Attention of single rows: the decode step of several sequences, and short prompts; heads and caches that attend_rows_mma.cu leaves.
/// Mapping:  a cluster per row, key head and up to kHeads of its query heads; its thread blocks take equal runs of keys. Within one, a
/// group
///           of `lanes` lanes has 8 elements of a key each and takes every so-many-th key, kAhead at a time, with a running softmax of its
///           own. Softmaxes meet by shuffles, in shared memory, and in the cluster's shared memory, each time in one order.
///           Of a decode step q, k and v come straight from the product: every thread block turns its queries, and the last one of the
///           cluster puts the new key and value into the cache and counts them in.
/// Requires: else keys and values of the row's own position are in the cache (place_heads.cu).
/// Bound:    the bytes of keys and values. Meaning: kernels/reference/attention.cc.

#include "kernels/cuda/decoder/attend_rows.cuh"
#include "kernels/cuda/decoder/place_head.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kMostSplits = 8;

template <CacheKind kKind, int kHeads>
__global__ void __launch_bounds__(kThreads) attend_rows(const AttendProblem p, int lanes, int splits) {
  __shared__ AttendParts<kWarps, kHeads, kMostHeadDim> parts;
  constexpr int kAhead = kHeads == 1 ? 4 : 2;
  const HeadsShape& shape = p.shape;
  AttendTask task(p, kHeads, splits);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, pitch = shape.pitch();
  const int element = lane % lanes * 8, groups = kThreads / lanes;
  const bool has_elements = element < pitch;
  begin_after_earlier_kernels();
  const CacheView cache = task.find_keys(p, splits);
  const std::int64_t keys = task.keys, values = task.values;
  const int row = task.row, begin = task.begin, stop = task.stop;
  float q[kHeads][8];
  Running<kHeads> sums;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    sums.largest[h] = kLowest;
    sums.total[h] = 0.0f;
    const int own = task.head + min(h, task.live - 1);
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
  if (p.places && task.split == splits - 1 && warp == 0) {  // the row's own key and value: of the first group of lanes
    float k[8], v[1][8];
    place_head(p.place, row, shape.heads + task.kv, p.place.k_norm, p.place.k_norm != nullptr, true, element, lanes, k);
    place_head(p.place, row, shape.heads + shape.kv_heads + task.kv, nullptr, false, false, element, lanes, v[0]);
    const bool writes = task.pass == 0 && lane < lanes && has_elements;
    round_to_cache<kKind>(cache, keys + task.position, pitch, element, lanes, writes, k);
    round_to_cache<kKind>(cache, values + task.position, pitch, element, lanes, writes, v[0]);
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
      for (int i = 0; i < 8; ++i) parts.values[warp][h][element + i] = sums.values[h][i];
    }
    if (lane == 0) parts.largest[warp][h] = sums.largest[h], parts.total[warp][h] = sums.total[h];
  }
  __syncthreads();
  join_and_store<kThreads>(p, parts, kWarps, row, task.head, task.live, task.split, splits);
}

template <int kHeads>
int launch(const AttendProblem& problem, int lanes, int splits, Stream stream) {
  const HeadsShape& shape = problem.shape;
  const std::int64_t blocks = attend_blocks(shape, kHeads, splits);
  const auto run = [&](auto kernel) { return launch_chained(kernel, blocks, kThreads, 0, splits, stream, problem, lanes, splits); };
  switch (shape.kind) {
    case CacheKind::kFp32: return run(attend_rows<CacheKind::kFp32, kHeads>);
    case CacheKind::kFp16: return run(attend_rows<CacheKind::kFp16, kHeads>);
    case CacheKind::kBf16: return run(attend_rows<CacheKind::kBf16, kHeads>);
    case CacheKind::kE4m3: return run(attend_rows<CacheKind::kE4m3, kHeads>);
    case CacheKind::kInt8: return run(attend_rows<CacheKind::kInt8, kHeads>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int launch_attend_rows(const AttendProblem& problem, Stream stream) {
  const HeadsShape& shape = problem.shape;
  if (shape.head_dim > kMostHeadDim) return cudaErrorInvalidValue;
  if (takes_attend_rows_mma(shape)) return launch_attend_rows_mma(problem, stream);
  const int lanes = lanes_of(shape);
  int splits = 1;
  // Two thread blocks for each of about 130 multiprocessors keep memory busy.
  constexpr int kEnough = 256;
  while (splits < kMostSplits && shape.rows * shape.kv_heads * splits < kEnough) splits *= 2;
  return shape.heads == shape.kv_heads ? launch<1>(problem, lanes, splits, stream) : launch<4>(problem, lanes, splits, stream);
}

}  // namespace narrow::cuda
