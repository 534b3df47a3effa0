#pragma once
/// Inputs of a step's products, made by every thread block for itself: 128 columns, a chunk's, by a warp, four by a lane.

#include "kernels/cuda/decoder/values.cuh"
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

/// Rounds columns 4 lane .. 4 lane + 3 of a chunk of x to 16 bits, and sums what they are then over columns that share
/// a scale.
template <bool kBf16, bool kSums>
__device__ inline void store_input(const StepShared& shared, int sum_columns, int chunk, float4 v) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane * 4;
  std::uint32_t pair[2];
  float sum;
  if constexpr (kBf16) {
    const __nv_bfloat162 a = __floats2bfloat162_rn(v.x, v.y), b = __floats2bfloat162_rn(v.z, v.w);
    pair[0] = reinterpret_cast<const std::uint32_t&>(a), pair[1] = reinterpret_cast<const std::uint32_t&>(b);
    sum = 0.0f;
  } else {
    const __half2 a = __floats2half2_rn(saturated_f16(v.x), saturated_f16(v.y)),
                  b = __floats2half2_rn(saturated_f16(v.z), saturated_f16(v.w));
    pair[0] = reinterpret_cast<const std::uint32_t&>(a), pair[1] = reinterpret_cast<const std::uint32_t&>(b);
    const float2 low = __half22float2(a), high = __half22float2(b);
    sum = (low.x + low.y) + (high.x + high.y);
  }
  const int step = column / 16, r = column / 8 % 2, t = column % 8 / 2;
  std::uint32_t* to = shared.x + chunk * 64 + step / 2 * 16 + t * 4 + step % 2 * 2 + r;
  to[0] = pair[0];
  to[4] = pair[1];
  if constexpr (kSums) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (sum_columns > 16) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
    if (sum_columns > 32) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8), sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
    if (column % sum_columns == 0) shared.x_sums[(chunk * kChunkDepth + column) / sum_columns] = sum;
  }
}

/// x[chunk] = make(first column of the lane) for the chunks that the run needs, kAtOnce of a warp's at a time.
template <bool kBf16, bool kSums, int kAtOnce, typename Make>
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
      if (base + i * kWarps < end) store_input<kBf16, kSums>(shared, sum_columns, base + i * kWarps, v[i]);
  }
}

/// x = RMSNorm(stream), after what `added` gave is added to the stream where `adds`. The norm's weights are read before wait().
template <bool kBf16, bool kSums, int kQuads, int kVectors, typename Wait>
__device__ inline void norm_input(const StepShared& shared, int sum_columns, int hidden, float epsilon, const StepResults& added, bool adds,
                                  const float* weight, const Wait& wait) {
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
  const int padded = (hidden + kChunkDepth - 1) / kChunkDepth * kChunkDepth;
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (column_of(i) < padded)
      store_input<kBf16, kSums>(shared, sum_columns, column_of(i) / kChunkDepth,
                                {v[i].x * r * w[i].x, v[i].y * r * w[i].y, v[i].z * r * w[i].z, v[i].w * r * w[i].w});
}
__device__ inline float silu_times(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

}  // namespace narrow::cuda::sm90
