#pragma once
/// One head between the product and attention, eight elements per lane: norm, RoPE, and its way into the cache.

#include "format/scale_rule.h"
#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {

/// The sum over the `lanes` lanes of a group.
__device__ inline float group_sum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}
__device__ inline float group_max(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}

/// Lanes that hold a head.
inline int lanes_of(const HeadsShape& shape) {
  int lanes = 1;
  while (lanes * 8 < shape.pitch()) lanes *= 2;
  return lanes;
}

/// Elements [element, element + 8) of head `head` of a row of qkv, normed by `norm` (null: not) and turned where asked; zeros beyond
/// head_dim. All lanes of the warp call it together, in groups of `lanes`; `has_norms` is the same for all of them.
__device__ inline void place_head(const PlaceHeadsProblem& p, int row, int head, const float* norm, bool has_norms, bool turns, int element,
                                  int lanes, float (&x)[8]) {
  const HeadsShape& shape = p.shape;
  const int half = shape.head_dim / 2;
  const std::int64_t from = (std::int64_t{row} * (shape.heads + 2 * shape.kv_heads) + head) * shape.head_dim;
  const bool eights = half % 8 == 0;  // whole ones, aligned, in both halves
  // values[element ..] where the head has them, else zeros.
  const auto load = [&](const void* values, DType type, std::int64_t first, int begin, int step, float(&to)[8]) {
    if (eights && element < shape.head_dim) {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 four = load_four(values, type, first + begin + i);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int e = element + i, place = e < half ? e : e - half;  // step: 0 the element, 1 its pair's other, 2 the pair
        const int at = step == 0 ? e : (step == 1 ? (e < half ? e + half : e - half) : place);
        to[i] = e < shape.head_dim ? load_value(values, type, first + at) : 0.0f;
      }
    }
  };
  const int other_begin = element < half ? element + half : element - half, pair_begin = element < half ? element : element - half;
  float other[8], sum = 0.0f;
  load(p.qkv, p.type, from, element, 0, x);
  if (turns) load(p.qkv, p.type, from, other_begin, 1, other);
  if (has_norms) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[i] * x[i];
    const float r = 1.0f / sqrtf(group_sum(sum, lanes) / static_cast<float>(shape.head_dim) + p.epsilon);
    if (norm != nullptr) {
      float own[8], others[8];
      load(norm, DType::kF32, 0, element, 0, own);
      load(norm, DType::kF32, 0, other_begin, 1, others);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= r * own[i], other[i] *= r * others[i];
    }
  }
  if (!turns) return;
  const std::int64_t table = std::int64_t{p.table_rows[row]} * half;
  float c[8], s[8];
  load(p.cosine, DType::kF32, table, pair_begin, 2, c);
  load(p.sine, DType::kF32, table, pair_begin, 2, s);
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // rounded as the CPU does
    const float turned = __fmul_rn(other[i], s[i]);
    x[i] = __fadd_rn(__fmul_rn(x[i], c[i]), element + i < half ? -turned : turned);
  }
}

/// Writes a lane's eight elements of a row of the cache where `writes`, and leaves in x what the cache holds of them, the scale included.
template <CacheKind kKind>
__device__ inline void round_to_cache(const CacheView& cache, std::int64_t row, int pitch, int element, int lanes, bool writes,
                                      float (&x)[8]) {
  std::byte* to = cache.codes + (row * pitch + element) * bytes_of(kKind);
  if constexpr (kKind == CacheKind::kFp32) {
    if (writes) {
      reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
      reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
    }
  } else if constexpr (!has_scales(kKind)) {
    constexpr DType kType = kKind == CacheKind::kFp16 ? DType::kF16 : DType::kBf16;
    std::uint16_t rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_value(rounded, kType, i, x[i]);
      x[i] = load_value(rounded, kType, i);
    }
    if (writes) {
      const auto pair = [&](int i) { return std::uint32_t{rounded[i]} | std::uint32_t{rounded[i + 1]} << 16; };
      *reinterpret_cast<uint4*>(to) = {pair(0), pair(2), pair(4), pair(6)};
    }
  } else {
    constexpr Format kElement = kKind == CacheKind::kInt8 ? Format(kInt8) : Format(kFp8E4m3);
    constexpr Scheme kScheme{.element = kElement};
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = isfinite(x[i]) ? fmaxf(amax, fabsf(x[i])) : amax;
    const float scale = scale_from_amax(kScheme, group_max(amax, lanes), 1.0f).effective;
    std::uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t code = encode(kElement, isnan(x[i]) ? 0.0f : __fdiv_rn(x[i], scale)) & 0xFFu;
      words[i / 4] |= code << (i % 4 * 8);
      x[i] = decode(kElement, code) * scale;
    }
    if (writes) *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    if (writes && element == 0) cache.scales[row] = scale;
  }
}

}  // namespace narrow::cuda
