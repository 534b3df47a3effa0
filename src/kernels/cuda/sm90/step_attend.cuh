#pragma once
/// Attention of a step, of heads whose size is a multiple of 16. Every key head has `splits` thread blocks, which take equal runs of its
/// keys. The warps of a thread block are dealt to its query heads, kHeads to each; within a warp groups of lanes take every so-many-th key,
/// as in decoder/attend_rows.cu. Softmaxes meet by shuffles and in shared memory; those of the splits are joined by whoever reads them. The
/// last split turns the new key, puts it and the new value into the cache and counts them in. Keys of earlier steps are on their way before
/// q is there.

#include "kernels/cuda/decoder/place_head.cuh"
#include "kernels/cuda/sm90/step_input.cuh"

namespace narrow::cuda::sm90 {

/// Norms and turns the group's queries and the key, of which a warp has one at a time, where they lie: [group + 2][head_dim].
__device__ inline void turn_heads(const StepParams& p, const StepLayer& w, const float* turns, int group, int head_dim, float* heads) {
  const int lane = thread_index() % 32, half = head_dim / 2;
  for (int head = thread_index() / 32; head <= group; head += kStepConsumers / 32) {
    float* x = heads + head * head_dim;
    const float* norm = head < group ? w.q_norm : w.k_norm;
    float r = 1.0f;
    if (norm != nullptr) {
      float sum = 0.0f;
      for (int i = lane; i < head_dim; i += 32) sum += x[i] * x[i];
      r = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(head_dim) + p.epsilon);
    }
    for (int i = lane; i < half; i += 32) {
      float low = x[i], high = x[i + half];
      if (norm != nullptr) low *= r * __ldg(norm + i), high *= r * __ldg(norm + i + half);
      const float c = turns[i], s = turns[half + i];
      x[i] = low * c - high * s;
      x[i + half] = high * c + low * s;
    }
  }
}

__device__ inline void load_eight(const float* from, float (&x)[8]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

/// kDim: the size of a head, or 0 where it is known at run time.
template <CacheKind kKind, int kHeads, int kDim>
__device__ __forceinline__ void attend_step(const StepParams& p, const StepShared& shared, int layer) {
  const StepLayer& w = shared.layers[layer];
  const CacheView cache = shared.fixed.cache;
  const int position = shared.fixed.position;
  float* memory = shared.attention;
  constexpr int kWarps = kStepConsumers / 32, kAhead = kHeads == 1 && kKind != CacheKind::kFp32 ? 4 : 2;
  const int splits = p.splits, kv = static_cast<int>(blockIdx.x) / splits, split = static_cast<int>(blockIdx.x) % splits;
  if (kv >= p.kv_heads) return;
  const int group = kHeads == 1 ? 1 : p.heads / p.kv_heads, passes = (group + kHeads - 1) / kHeads, share_of_warps = kWarps / passes;
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32, pass = warp / share_of_warps;
  const int head_dim = kDim > 0 ? kDim : p.head_dim;
  int lanes = kDim > 0 ? kDim / 8 : 2;
  while (lanes * 8 < head_dim) lanes *= 2;
  const int element = lane % lanes * 8, keys_at_once = share_of_warps * (32 / lanes),
            own = warp % share_of_warps * (32 / lanes) + lane / lanes;
  const bool works = pass < passes, has_elements = element < head_dim;

  const int first = w.window > 0 ? max(0, position + 1 - w.window) : 0;
  const int share = (position - first + splits - 1) / splits, begin = first + split * share, stop = min(position, begin + share);
  const std::int64_t keys = cache.row(layer, 0, p.kv_heads, kv, 0), values = cache.row(layer, 1, p.kv_heads, kv, 0);
  Eight<kKind> raw_keys[kAhead], raw_values[kAhead];
  float key_scale[kAhead], value_scale[kAhead];
  const auto fetch = [&](int base) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int key = min(base + u * keys_at_once, stop - 1);
      raw_keys[u] = raw_values[u] = {};
      if (has_elements && works && key >= begin) {
        raw_keys[u] = Eight<kKind>::load(cache.codes, (keys + key) * head_dim + element);
        raw_values[u] = Eight<kKind>::load(cache.codes, (values + key) * head_dim + element);
      }
      key_scale[u] = has_scales(kKind) && key >= begin ? cache.scales[keys + key] : 1.0f;
      value_scale[u] = has_scales(kKind) && key >= begin ? cache.scales[values + key] : 1.0f;
    }
  };
  fetch(begin + own);
  consumers_sync();

  // The group's queries, then the key and the value: rows of q, k, v of which this key head's are taken.
  const StepTag tag = StepTag::of(shared.fixed.steps, p.layer_count, layer);
  const StepResults qkv = results_of(p, shared, kStepQkv, tag);
  for (int i = thread * 4; i < (group + 2) * head_dim; i += kStepConsumers * 4) {
    const int head = i / head_dim;
    const int from = head < group ? kv * group + head : p.heads + (head == group ? kv : p.kv_heads + kv);
    const int column = from * head_dim + i % head_dim;
    *reinterpret_cast<float4*>(memory + i) = qkv.load<kStepMostParts>(column);
  }
  consumers_sync();
  turn_heads(p, w, shared.turns, group, head_dim, memory);
  consumers_sync();
  float q[kHeads][8] = {};
  Running<kHeads> sums;
  const int head = pass * kHeads, live = min(kHeads, group - head);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    sums.largest[h] = kLowest;
    sums.total[h] = 0.0f;
    if (works && has_elements) load_eight(memory + (head + min(h, live - 1)) * head_dim + element, q[h]);
#pragma unroll
    for (int i = 0; i < 8; ++i) q[h][i] *= p.score_scale * kLog2e, sums.values[h][i] = 0.0f;
  }
  for (int base = begin; base < stop; base += keys_at_once * kAhead) {
    float v[kAhead][8], scores[kHeads][kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float k[8];
      raw_keys[u].unpack(k);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) score = fmaf(q[h][i], k[i], score);
        score = group_sum(score, lanes) * key_scale[u];
        scores[h][u] = base + own + u * keys_at_once < stop ? score : -INFINITY;
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) raw_values[u].unpack(v[u]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) count_in<kHeads, kAhead>(sums, h, scores[h], v, value_scale);
    if (base + keys_at_once * kAhead < stop) fetch(base + keys_at_once * kAhead + own);
  }
  if (split == splits - 1 && works && warp % share_of_warps == 0) {  // the new key and value: of the first group of lanes
    float k[8] = {}, v[1][8] = {};
    if (has_elements) load_eight(memory + group * head_dim + element, k), load_eight(memory + (group + 1) * head_dim + element, v[0]);
    const bool writes = pass == 0 && lane < lanes && has_elements;
    round_to_cache<kKind>(cache, keys + position, head_dim, element, lanes, writes, k);
    round_to_cache<kKind>(cache, values + position, head_dim, element, lanes, writes, v[0]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) score = fmaf(q[h][i], k[i], score);
      score = group_sum(score, lanes);
      const float new_scores[1] = {lane < lanes ? score : -INFINITY}, one[1] = {1.0f};
      count_in<kHeads, 1>(sums, h, new_scores, v, one);
    }
  }
  for (int offset = lanes; offset < 32; offset *= 2) join(sums, offset);
  float* warp_values = memory + (group + 2) * head_dim;  // [warps][kHeads][head_dim]
  float* warp_largest = warp_values + kWarps * kHeads * head_dim;
  float* warp_totals = warp_largest + kWarps * kHeads;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane < lanes && has_elements)
#pragma unroll
      for (int i = 0; i < 8; ++i) warp_values[(warp * kHeads + h) * head_dim + element + i] = sums.values[h][i];
    if (lane == 0) warp_largest[warp * kHeads + h] = sums.largest[h], warp_totals[warp * kHeads + h] = sums.total[h];
  }
  consumers_sync();
  // Four lanes for a value: each joins every fourth of the head's warps.
  for (int base = 0; base < group * head_dim; base += kStepConsumers / 4) {
    const int i = min(base + thread / 4, group * head_dim - 1);
    const int g = i / head_dim, d = i % head_dim, begin_warp = g / kHeads * share_of_warps, h = g % kHeads;
    float largest = kLowest, total = 0.0f, value = 0.0f;
    for (int s = begin_warp + thread % 4; s < begin_warp + share_of_warps; s += 4) largest = fmaxf(largest, warp_largest[s * kHeads + h]);
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    largest = StepTag::value(tag.word(largest));  // as it is read: values are of that
    for (int s = begin_warp + thread % 4; s < begin_warp + share_of_warps; s += 4) {
      const float factor = power_of_two(warp_largest[s * kHeads + h] - largest);
      total += warp_totals[s * kHeads + h] * factor;
      value += warp_values[(s * kHeads + h) * head_dim + d] * factor;
    }
    total = group_sum(total, 4);
    value = group_sum(value, 4);
    if (thread % 4 == 0 && base + thread / 4 < group * head_dim) {
      const int pitch = softmax_pitch(head_dim);
      std::uint32_t* to = p.softmaxes + static_cast<std::int64_t>((kv * group + g) * splits + split) * pitch;
      store_relaxed(to + d, tag.word(value));
      if (d < 4) store_relaxed(to + pitch - 4 + d, tag.word(d == 0 ? largest : (d == 1 ? total : 0.0f)));
    }
  }
}

/// The same as a function of its own, for what is rare: it would take registers from products in one with them.
template <CacheKind kKind, int kHeads, int kDim>
__device__ __noinline__ void attend_apart(int layer) {
  extern __shared__ std::byte step_memory[];
  const StepParams& p = reinterpret_cast<StepShared::Fixed*>(step_memory)->params;
  attend_step<kKind, kHeads, kDim>(p, StepShared(step_memory, p), layer);
}

/// Four neighbouring values of what attention gives, from the splits' softmaxes.
template <int kDim>
__device__ inline float4 load_mixed(const StepParams& p, StepTag tag, int column) {
  const int head_dim = kDim > 0 ? kDim : p.head_dim, head = column / head_dim, d = column % head_dim, pitch = softmax_pitch(head_dim);
  const std::uint32_t* from = p.softmaxes + static_cast<std::int64_t>(head * p.splits) * pitch;
  float largest = kLowest, total = 0.0f;
  float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
  constexpr int kAtOnce = 4;
  for (int base = 0; base < p.splits; base += kAtOnce) {
    uint4 values[kAtOnce], weights[kAtOnce];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        const std::uint32_t* its = from + min(base + s, p.splits - 1) * pitch;
        values[s] = load_relaxed_four(its + d);
        weights[s] = load_relaxed_four(its + pitch - 4);
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) all = all && tag.has(values[s]) && tag.has(weights[s]);
    } while (!all);
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const float4 v = StepTag::values(values[s]);
      const float its_largest = base + s < p.splits ? StepTag::value(weights[s].x) : kLowest;
      const float its_total = base + s < p.splits ? StepTag::value(weights[s].y) : 0.0f;
      const float next = fmaxf(largest, its_largest), scale = power_of_two(largest - next);
      const float other = base + s < p.splits ? power_of_two(its_largest - next) : 0.0f;
      total = total * scale + its_total * other;
      sum = {sum.x * scale + v.x * other, sum.y * scale + v.y * other, sum.z * scale + v.z * other, sum.w * scale + v.w * other};
      largest = next;
    }
  }
  const float share = reciprocal(total);
  return {sum.x * share, sum.y * share, sum.z * share, sum.w * share};
}

}  // namespace narrow::cuda::sm90
