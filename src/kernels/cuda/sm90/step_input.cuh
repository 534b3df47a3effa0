#pragma once
/// Inputs of a step's products, made by every thread block for itself: 128 columns, a chunk's, by a warp, four by a lane.

#include "kernels/cuda/decoder/values.cuh"
#include "kernels/cuda/sm90/output_box.cuh"
#include "kernels/cuda/sm90/step_ring.cuh"

namespace narrow::cuda::sm90 {

__device__ inline void consumers_sync() { named_sync(1, kStepConsumers); }

/// The sum over all consumers, in one order.
__device__ inline float consumers_sum(float value, float* shared) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  consumers_sync();
  return warp_sum(threadIdx.x % 32 < kStepConsumers / 32 ? shared[threadIdx.x % 32] : 0.0f);
}

__device__ inline float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// What a product gave: vectors that thread blocks added their parts to.
struct StepResults {
  const float* vectors;
  int pitch;

  /// Four neighbours.
  template <int kVectors>
  __device__ float4 load(int column) const {
    float4 sum = __ldcg(reinterpret_cast<const float4*>(vectors + column));
    if constexpr (kVectors == 2) sum = add(sum, __ldcg(reinterpret_cast<const float4*>(vectors + pitch + column)));
    return sum;
  }
};
__device__ inline StepResults results_of(const StepParams& p, int kind) { return {p.shapes[kind].results, p.shapes[kind].pitch}; }

/// Columns 4 lane .. 4 lane + 3 of a chunk of x, rounded to 16 bits.
template <bool kBf16>
__device__ inline void store_values(const StepShared& shared, int chunk, float4 v) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane * 4;
  const int step = column / 16, r = column / 8 % 2, t = column % 8 / 2;
  std::uint32_t* to = shared.x + chunk * 64 + step / 2 * 16 + t * 4 + step % 2 * 2 + r;
  to[0] = pack_two(!kBf16, v.x, v.y);
  to[4] = pack_two(!kBf16, v.z, v.w);
}

/// The same of fp16, as digits: x = scale (d0 + 2^8 d1 + 2^16 d2 + 2^24 d3), each digit a signed byte, the scale a power of two: less than
/// 2^-30 of the chunk's largest value is rounded away. And the sums of x over columns that share a scale.
__device__ inline void store_digits(const StepShared& shared, int sum_columns, int chunk, float4 v) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rounded = [](float a, float b) {
    const std::uint32_t pair = pack_two(true, a, b);
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  };
  const float2 first = rounded(v.x, v.y), second = rounded(v.z, v.w);
  v = {first.x, first.y, second.x, second.y};
  const float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  const std::uint32_t exponent = max(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(largest)) >> 23, 30u);
  const float up = __uint_as_float((283u - exponent) << 23);
  constexpr std::uint32_t kHalves = 0x80808080u;  // a digit is a byte less 128
  const auto fixed = [&](float value) { return static_cast<std::uint32_t>(__float2int_rn(value * up)) + kHalves; };
  // Columns 2 t + {0, 8, 1, 9} of a step come together: lanes two apart exchange pairs.
  const bool is_high = lane / 2 % 2 != 0;
  const std::uint32_t low[2] = {fixed(v.x), fixed(v.y)}, high[2] = {fixed(v.z), fixed(v.w)};
  const std::uint32_t got[2] = {__shfl_xor_sync(0xFFFFFFFFu, is_high ? low[0] : high[0], 2),
                                __shfl_xor_sync(0xFFFFFFFFu, is_high ? low[1] : high[1], 2)};
  const std::uint32_t a = is_high ? got[0] : low[0], b = is_high ? high[0] : got[0], c = is_high ? got[1] : low[1],
                      d = is_high ? high[1] : got[1];
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362), cd_low = __byte_perm(c, d, 0x5140),
                      cd_high = __byte_perm(c, d, 0x7362);
  const int step = lane / 4, t = lane % 2 * 2 + lane / 2 % 2;
  std::uint32_t* to = shared.x + chunk * kChunkDepth + step / 4 * 64 + t * 4 + step % 4;
  to[0] = __byte_perm(ab_low, cd_low, 0x5410) ^ kHalves;
  to[16] = __byte_perm(ab_low, cd_low, 0x7632) ^ kHalves;
  to[32] = __byte_perm(ab_high, cd_high, 0x5410) ^ kHalves;
  to[48] = __byte_perm(ab_high, cd_high, 0x7632) ^ kHalves;
  float sum = (v.x + v.y) + (v.z + v.w);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  if (sum_columns > 16) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
  if (sum_columns > 32) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8), sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
  if (lane * 4 % sum_columns == 0) shared.x_sums[(chunk * kChunkDepth + lane * 4) / sum_columns] = sum;
  // A NaN makes everything NaN.
  const std::uint32_t scale = exponent == 255u ? 0x7FFFFFFFu : (exponent - 29u) << 23;
  if (lane < 2) shared.x_scales[chunk * 2 + lane] = __uint_as_float(scale) * (lane == 0 ? 1.0f : 0x1p16f);
}

template <bool kBf16, bool kDigits>
__device__ inline void store_input(const StepShared& shared, int sum_columns, int chunk, float4 v) {
  if constexpr (kDigits)
    store_digits(shared, sum_columns, chunk, v);
  else
    store_values<kBf16>(shared, chunk, v);
}

/// x[chunk] = make(first column of the lane) for the chunks that the run needs, kAtOnce of a warp's at a time.
template <bool kBf16, bool kDigits, int kAtOnce, typename Make>
__device__ inline void make_input(const StepShared& shared, int sum_columns, const StepRun& run, int k, const Make& make) {
  constexpr int kWarps = kStepConsumers / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, end = run.columns_end;
#pragma unroll 1
  for (int base = run.columns_begin + warp; base < end; base += kWarps * kAtOnce) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int column = (base + i * kWarps) * kChunkDepth + lane * 4;
      v[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (base + i * kWarps < end && column < k) v[i] = make(column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (base + i * kWarps < end) store_input<kBf16, kDigits>(shared, sum_columns, base + i * kWarps - run.columns_begin, v[i]);
  }
}

/// x = RMSNorm(stream), after what `added` gave is added to the stream where `adds`. The norm's weights are read before wait().
template <bool kBf16, bool kDigits, int kQuads, int kVectors, typename Wait>
__device__ inline void norm_input(const StepShared& shared, int sum_columns, const StepRun& run, int hidden, float epsilon,
                                  const StepResults& added, bool adds, const float* weight, const Wait& wait) {
  const auto column_of = [](int i) { return (static_cast<int>(threadIdx.x) + i * kStepConsumers) * 4; };
  float4 v[kQuads], w[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    v[i] = w[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column_of(i) < hidden) w[i] = __ldg(reinterpret_cast<const float4*>(weight + column_of(i)));
  }
  wait();
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (column_of(i) < hidden && adds) v[i] = added.load<kVectors>(column_of(i));
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (column_of(i) < hidden) {
      float4& place = *reinterpret_cast<float4*>(shared.stream + column_of(i));
      v[i] = add(place, v[i]);
      place = v[i];
      sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
  sum = consumers_sum(sum, shared.reduced);
  const float r = rsqrtf(__fdividef(sum, static_cast<float>(hidden)) + epsilon);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int chunk = column_of(i) / kChunkDepth;
    if (chunk >= run.columns_begin && chunk < run.columns_end)
      store_input<kBf16, kDigits>(shared, sum_columns, chunk - run.columns_begin,
                                  {v[i].x * r * w[i].x, v[i].y * r * w[i].y, v[i].z * r * w[i].z, v[i].w * r * w[i].w});
  }
}

__device__ inline float silu_times(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

}  // namespace narrow::cuda::sm90
