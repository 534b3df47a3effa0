#pragma once
/// Inputs of a step's products, made by every thread block for itself: 128 columns, a chunk's, by a warp, four by a lane.

#include "kernels/cuda/decoder/running_softmax.cuh"
#include "kernels/cuda/decoder/values.cuh"
#include "kernels/cuda/sm90/output_box.cuh"
#include "kernels/cuda/sm90/step_ptx.cuh"
#include "kernels/cuda/sm90/step_ring.cuh"

namespace narrow::cuda::sm90 {

__device__ inline void consumers_sync() { named_sync(1, kStepConsumers); }

/// The sum over all consumers, in one order.
__device__ inline float consumers_sum(float value, float* shared) {
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  consumers_sync();
  return warp_sum(lane < kStepConsumers / 32 ? shared[lane] : 0.0f);
}

__device__ inline float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// Words that thread blocks hand to one another, without a fence: floats whose last bit, which is not theirs, changes from one use of a
/// place to the next. Whoever reads a word sees whether it is there already, and reads again where it is not. StepBarrier sees to it that
/// no place is written again before its readers are done.
struct StepTag {
  std::uint32_t bit;

  /// Of layer `layer` in step `step`: words are zero before the first use.
  __device__ static StepTag of(std::uint32_t step, int layer_count, int layer) {
    return {(step * static_cast<std::uint32_t>(layer_count) + static_cast<std::uint32_t>(layer) + 1u) & 1u};
  }
  __device__ std::uint32_t word(float value) const { return (__float_as_uint(value) & ~1u) | bit; }
  __device__ bool has(const uint4& v) const { return (((v.x ^ bit) | (v.y ^ bit) | (v.z ^ bit) | (v.w ^ bit)) & 1u) == 0; }
  __device__ static float value(std::uint32_t word) { return __uint_as_float(word & ~1u); }
  __device__ static float4 values(const uint4& v) { return {value(v.x), value(v.y), value(v.z), value(v.w)}; }
};

/// Meetings of all thread blocks, once a layer: arrivals, of every phase, are counted and never reset. Who has met knows that the others
/// have read all that was there before the phase's product, so that it may be written over.
struct StepBarrier {
  std::uint32_t target;

  __device__ explicit StepBarrier(std::uint32_t* arrivals) : target(*reinterpret_cast<volatile std::uint32_t*>(arrivals + 1)) {}
  /// By all consumers, which have met since their last reads.
  __device__ void arrive(std::uint32_t* arrivals) {
    target += gridDim.x;
    if (threadIdx.x == 0) add_relaxed(arrivals, 1u);
  }
  /// By all consumers, which meet afterwards.
  __device__ void wait(const std::uint32_t* arrivals) const {
    if (threadIdx.x == 0)
      while (static_cast<std::int32_t>(load_relaxed(arrivals) - target) < 0) {
      }
  }
};

/// What a product gave: the parts of its sums.
struct StepResults {
  const std::uint32_t* vectors;
  int pitch;
  const std::uint8_t* parts;  ///< of each row of chunks
  StepTag tag;

  /// Four neighbours, of up to kParts parts, as they are by now.
  template <int kParts>
  struct Words {
    uint4 part[kParts];
  };
  template <int kParts>
  __device__ Words<kParts> fetch(int column) const {
    Words<kParts> words;
    const int count = kParts == 1 ? 1 : parts[column / kChunkRows];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      words.part[i] = {tag.bit, tag.bit, tag.bit, tag.bit};
      if (i == 0 || i < count) words.part[i] = load_relaxed_four(vectors + static_cast<std::int64_t>(i) * pitch + column);
    }
    return words;
  }
  template <int kParts>
  __device__ bool are_there(const Words<kParts>& words) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kParts; ++i) all = all && tag.has(words.part[i]);
    return all;
  }
  template <int kParts>
  __device__ static float4 sum(const Words<kParts>& words) {
    float4 sum = StepTag::values(words.part[0]);
#pragma unroll
    for (int i = 1; i < kParts; ++i) sum = add(sum, StepTag::values(words.part[i]));
    return sum;
  }
  /// The sums, as soon as all parts are there.
  template <int kParts>
  __device__ float4 load(int column) const {
    Words<kParts> words;
    do words = fetch<kParts>(column);
    while (!are_there(words));
    return sum(words);
  }
};
__device__ inline StepResults results_of(const StepParams& p, const StepShared& shared, int kind, StepTag tag) {
  return {p.shapes[kind].results, p.shapes[kind].pitch, shared.parts + p.shapes[kind].parts_at, tag};
}

/// Columns 4 lane .. 4 lane + 3 of a chunk of x, as high + 2^-11 low in fp16, or rounded to bf16. What is beyond fp16's range saturates.
template <bool kBf16>
__device__ inline void store_values(const StepShared& shared, int lane, int chunk, float4 v) {
  const int column = lane * 4;
  const int step = column / 16, r = column / 8 % 2, t = column % 8 / 2;
  std::uint32_t* to = shared.x + chunk * kStepChunk<kBf16> + step / 2 * (kStepChunk<kBf16> / 4) + t * 4 + step % 2 * 2 + r;
  const std::uint32_t high[2] = {pack_two(!kBf16, v.x, v.y), pack_two(!kBf16, v.z, v.w)};
  to[0] = high[0];
  to[4] = high[1];
  if constexpr (!kBf16) {
    const auto rest = [](std::uint32_t pair, float a, float b) {
      const float2 rounded = __half22float2(reinterpret_cast<const __half2&>(pair));
      return pack_two(true, (a - rounded.x) * kStepLow, (b - rounded.y) * kStepLow);
    };
    to[16] = rest(high[0], v.x, v.y);
    to[20] = rest(high[1], v.z, v.w);
  }
}

/// The same as digits: x = scale (d0 + 2^8 d1 + 2^16 d2 + 2^24 d3), each digit a signed byte, the scale a power of two: less than 2^-30 of
/// the chunk's largest value is rounded away. And the sums of x over columns that share a scale.
__device__ inline void store_digits(const StepShared& shared, int sum_columns, int lane, int chunk, float4 v) {
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
  // An infinity or a NaN makes everything NaN.
  const std::uint32_t scale = exponent == 255u ? 0x7FFFFFFFu : (exponent - 29u) << 23;
  if (lane < 2) shared.x_scales[chunk * 2 + lane] = __uint_as_float(scale) * (lane == 0 ? 1.0f : 0x1p16f);
}

template <bool kBf16, bool kDigits>
__device__ inline void store_input(const StepShared& shared, int sum_columns, int lane, int chunk, float4 v) {
  if constexpr (kDigits)
    store_digits(shared, sum_columns, lane, chunk, v);
  else
    store_values<kBf16>(shared, lane, chunk, v);
}

/// x[chunk] = make(fetch(column)), of the first column of a lane, for the chunks that the run needs, kAtOnce of a warp's at a time: all of
/// them are fetched, again and again, until all are there.
template <bool kBf16, bool kDigits, int kAtOnce, typename Fetch, typename AreThere, typename Make>
__device__ inline void make_input(const StepShared& shared, int sum_columns, const StepRun& run, int k, const Fetch& fetch,
                                  const AreThere& are_there, const Make& make) {
  constexpr int kWarps = kStepConsumers / 32;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32, end = run.columns_end;
#pragma unroll 1
  for (int base = run.columns_begin + warp; base < end; base += kWarps * kAtOnce) {
    decltype(fetch(0)) fetched[kAtOnce];
    bool all;
    const auto column_of = [&](int i) { return (base + i * kWarps) * kChunkDepth + lane * 4; };
    const auto has = [&](int i) { return base + i * kWarps < end && column_of(i) < k; };
    do {
      all = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fetched[i] = fetch(has(i) ? column_of(i) : 0);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) all = all && are_there(fetched[i]);
    } while (!all);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i * kWarps >= end) break;
      const float4 v = has(i) ? make(fetched[i]) : float4{0.0f, 0.0f, 0.0f, 0.0f};
      store_input<kBf16, kDigits>(shared, sum_columns, lane, base + i * kWarps - run.columns_begin, v);
    }
  }
}

/// x = RMSNorm(stream), after what `added` gave is added to the stream where `adds`.
template <bool kBf16, bool kDigits, int kQuads, int kParts>
__device__ inline void norm_input(const StepShared& shared, int sum_columns, const StepRun& run, int hidden, float epsilon,
                                  const StepResults& added, bool adds, const float* weight) {
  const int thread = thread_index();
  const auto column_of = [&](int i) { return (thread + i * kStepConsumers) * 4; };
  float4 v[kQuads], w[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    v[i] = w[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column_of(i) < hidden) w[i] = __ldg(reinterpret_cast<const float4*>(weight + column_of(i)));
  }
  if (adds) {
    constexpr int kAtOnce = kQuads * kParts <= 4 ? kQuads : 1;  // registers are few
#pragma unroll
    for (int base = 0; base < kQuads; base += kAtOnce) {
      StepResults::Words<kParts> words[kAtOnce];
      bool all;
      do {
        all = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) words[i] = added.fetch<kParts>(column_of(base + i) < hidden ? column_of(base + i) : 0);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) all = all && added.are_there(words[i]);
      } while (!all);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[base + i] = StepResults::sum(words[i]);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (column_of(i) < hidden) {
      float4& place = *reinterpret_cast<float4*>(shared.stream + column_of(i));
      v[i] = add(place, v[i]);
      place = v[i];
      sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
  sum = consumers_sum(sum, shared.fixed.reduced);
  const float r = rsqrtf(__fdividef(sum, static_cast<float>(hidden)) + epsilon);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int chunk = column_of(i) / kChunkDepth;
    if (chunk >= run.columns_begin && chunk < run.columns_end)
      store_input<kBf16, kDigits>(shared, sum_columns, thread % 32, chunk - run.columns_begin,
                                  {v[i].x * r * w[i].x, v[i].y * r * w[i].y, v[i].z * r * w[i].z, v[i].w * r * w[i].w});
  }
}

__device__ inline float silu_times(float gate, float up) { return gate * reciprocal(1.0f + power_of_two(-kLog2e * gate)) * up; }

}  // namespace narrow::cuda::sm90
