#pragma once
/// The consumers' main loops: from packed weights and tokens in shared memory to sums in registers.

#include "kernels/cuda/sm90/weight_tile.cuh"
#include "kernels/cuda/sm90/wgmma_registers.cuh"

namespace narrow::cuda::sm90 {

/// A consumer warpgroup's way through its tiles.
template <class T>
class WeightConsumer {
 public:
  __device__ WeightConsumer(const WeightParams& params, const WeightShared<T>& memory, int rank)
      : p(params), shared(memory), lane(static_cast<int>(threadIdx.x) % 32), warp(static_cast<int>(threadIdx.x) % 128 / 32) {
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in all lanes, and known to be
    row_group = group;
    chunks = depth_of(p, rank).count;
    state.shift = p.shift;
    state.magnitude = p.magnitude;
    asm volatile("mov.b32 %0, %1;" : "=r"(state.magic) : "r"(T::kBf16 ? 0x43004300u : 0x64006400u));
    if constexpr (T::Decode::kKind == WeightKind::kInteger) {
      T::Decode::template set_zero<T::kBf16>(state, 0, p.integer_offset);
      T::Decode::template set_zero<T::kBf16>(state, 1, p.integer_offset);
    }
  }

  /// The sums of one tile along this warpgroup's share of k.
  __device__ void multiply(float (&sums)[T::kCount]) {
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;
    if constexpr (T::kRowScales) {
      multiply_rows(sums);
    } else {
      if constexpr (T::Decode::kKind != WeightKind::kDense)
        if (p.scale != ChunkScale::kNone && p.step < kChunkDepth && !p.folds_scales)
          return p.step == 16 ? multiply_inside<1>(sums) : multiply_inside<2>(sums);
      multiply_chunks(sums);
    }
  }

  const WeightParams& p;
  const WeightShared<T>& shared;
  int lane, warp, row_group, chunks;

 private:
  static constexpr int kWords = T::kBits <= 8 ? 2 * T::kBits : 16;  ///< dense weights are loaded by halves

  __device__ void load_words(const std::byte* chunk, std::uint32_t (&words)[kWords], int half) const {
    if constexpr (T::kBits > 8) chunk += half * 4 * 32 * 16;  // four units
    const std::byte* mine = chunk + warp * (32 * 8 * T::kBits);
#pragma unroll
    for (int unit = 0; unit < kWords / 4; ++unit)
      *reinterpret_cast<uint4*>(words + unit * 4) = *reinterpret_cast<const uint4*>(mine + (unit * 32 + lane) * 16);
    if constexpr (kWords % 4 == 2)
      *reinterpret_cast<uint2*>(words + kWords - 2) = *reinterpret_cast<const uint2*>(mine + kWords / 4 * 512 + lane * 8);
  }
  /// The number of row t / 4's scale of the 16 columns of step `step` among those of a chunk.
  __device__ int scale_index(int step) const { return ((warp * 16 + lane / 4) * kChunkDepth + step * 16) >> p.step_shift; }
  /// Zero points of the 16 columns of a step.
  __device__ void load_zeros(const std::byte* chunk, int step) {
    if constexpr (T::Decode::kKind == WeightKind::kInteger) {
      if (p.zero_offset == 0) return;
      const auto* zeros = reinterpret_cast<const std::uint8_t*>(chunk) + p.zero_offset;
      const int first = scale_index(step), second = first + (8 * kChunkDepth >> p.step_shift);
      T::Decode::template set_zero<T::kBf16>(state, 0, zeros[first]);
      T::Decode::template set_zero<T::kBf16>(state, 1, zeros[second]);
    }
  }
  /// The four steps of half a chunk whose words are loaded (of dense weights, loads them).
  __device__ void decode_half(const std::byte* chunk, std::uint32_t (&words)[kWords], int half, std::uint32_t (&a)[kPairs]) {
    if constexpr (T::kBits > 8) load_words(chunk, words, half);
    const std::uint32_t* its = words + (T::kBits <= 8 ? half * T::kBits : 0);
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) {
      (T::Decode::template decode_step<T::kBf16, kStep>(its, state, a + 4 * kStep), ...);
    }(std::make_integer_sequence<int, 4>{});
    if constexpr (kMayFold)
      if (p.folds_scales) fold_scales(chunk, half, a);
    // Keeps the compiler from computing fragments after the fence that products need before them.
#pragma unroll
    for (int i = 0; i < kPairs; ++i) asm volatile("" : "+r"(a[i])::"memory");
  }
  /// Whether products of codes and fp8_e4m3 scales fit in 16 bits: 2 and 4 significant bits, and no product is below fp16's smallest step.
  static constexpr bool kMayFold = T::Decode::kKind == WeightKind::kFloat && T::kBits == 4 && !T::Decode::kAny;
  /// Multiplies the fragments of half a chunk by their scales, one per 16 columns.
  __device__ void fold_scales(const std::byte* chunk, int half, std::uint32_t (&a)[kPairs]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      std::uint32_t packed[2];
      load_packed_scales<1>(chunk, half * 4, row, packed);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const std::uint32_t two = __byte_perm(packed[step / 2], 0, step % 2 == 0 ? 0x1010 : 0x3232);
#pragma unroll
        for (int i = row; i < 4; i += 2) a[step * 4 + i] = multiply_by_scale<T::kBf16>(a[step * 4 + i], two);
      }
    }
  }
  __device__ void load_scales(const std::byte* chunk, int step, float (&scales)[2]) const {
    scales[0] = scales[1] = 1.0f;
    if (p.scale == ChunkScale::kNone) return;
    const int first = scale_index(step), second = first + (8 * kChunkDepth >> p.step_shift);
    const std::byte* stored = chunk + p.scale_offset;
    if (p.scale == ChunkScale::kFloat) {
      scales[0] = reinterpret_cast<const float*>(stored)[first];
      scales[1] = reinterpret_cast<const float*>(stored)[second];
    } else {
      scales[0] = __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(stored)[first]) << 16);
      scales[1] = __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(stored)[second]) << 16);
    }
  }
  __device__ void release(Barrier& barrier) const {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }
  __device__ void release_weights() {
    release(shared.weights_empty[weights.slot]);
    weights.advance(p.weight_slots);
  }
  /// Decoding has waited for what it loaded. Dense weights are operands as they are loaded: the products that take them wait for them, so
  /// that their slot can only be given back after those are issued. An arrival overtakes loads that are under way, and products of 256
  /// tokens hold loads up for long enough that the next weights came first.
  static constexpr bool kLoadsAreOperands = T::kBits > 8;
  __device__ void release_tokens() {
    release(shared.tokens_empty[tokens.slot]);
    tokens.advance(p.token_slots);
  }
  /// This warpgroup's chunk of a slot.
  __device__ const std::byte* chunk_of(int slot) const {
    return shared.weights + (slot * T::kRowGroups + row_group) * p.chunk_bytes;
  }
  /// The descriptor of the first 16 columns of a half of a slot of tokens; 2 more for the next 16.
  __device__ std::uint32_t token_word(int slot, int half) const {
    const int bytes = slot * T::kTokenBytes + (T::kRowScales ? 0 : half * T::kTokens * 128);
    return __shfl_sync(0xFFFFFFFFu, operand_word(shared_address(shared.tokens)) + static_cast<std::uint32_t>(bytes / 16), 0);
  }
  __device__ static void promote(float (&sums)[T::kCount], float (&accumulators)[T::kCount], const float (&scales)[2]) {
    pin(accumulators);
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = __fmaf_rn(accumulators[i], scales[i / 2 % 2], sums[i]);
  }

  /// The bf16 scales of four steps of row t / 4 (or of + 8), one every kBlock steps, two in a word.
  template <int kBlock>
  __device__ void load_packed_scales(const std::byte* chunk, int step, int row, std::uint32_t (&packed)[2]) const {
    const auto* stored =
        reinterpret_cast<const std::uint16_t*>(chunk + p.scale_offset) + scale_index(step) + row * 8 * (kChunkDepth / (16 * kBlock));
    if constexpr (kBlock == 1) {
      const uint2 four = *reinterpret_cast<const uint2*>(stored);
      packed[0] = four.x, packed[1] = four.y;
    } else {
      packed[0] = *reinterpret_cast<const std::uint32_t*>(stored);
    }
  }

  /// No scales along k: products add to the sums themselves. Decoding runs while the products before it do.
  __device__ void multiply_rows(float (&sums)[T::kCount]) {
    std::uint32_t words[kWords], a[2][kPairs];
    RingPlace before = tokens;
    bool lent = false;  // the slot `before` is still read by products
    for (int left = chunks; left > 0; --left) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
      load_zeros(chunk, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decode_half(chunk, words, half, a[half]);
        if (half == 1 && !kLoadsAreOperands) release_weights();
        shared.tokens_full[tokens.slot].wait(tokens.parity);
        const std::uint32_t b = token_word(tokens.slot, 0);
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(sums, a[half] + step * 4, operand(b + step * 2), true);
        wgmma_commit();
        if (half == 1 && kLoadsAreOperands) release_weights();
        wgmma_wait<1>();
        if (lent) release(shared.tokens_empty[before.slot]);
        lent = true;
        before = tokens;
        tokens.advance(p.token_slots);
      }
    }
    wgmma_wait<0>();
    pin(sums);
    if (lent) release(shared.tokens_empty[before.slot]);
  }

  /// One scale per chunk: its accumulators are promoted while the next chunk is decoded.
  __device__ void multiply_chunks(float (&sums)[T::kCount]) {
    if (chunks == 0) return;
    std::uint32_t words[kWords], a[2][kPairs];
    float accumulators[T::kCount], scales[2], next_scales[2];
    const auto load = [&](float(&its)[2]) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
      if (p.folds_scales) its[0] = its[1] = 1.0f;
      else load_scales(chunk, 0, its);
      load_zeros(chunk, 0);
      decode_half(chunk, words, 0, a[0]);
    };
    const auto issue = [&] {
      shared.tokens_full[tokens.slot].wait(tokens.parity);
      const std::uint32_t b = token_word(tokens.slot, 0), b1 = token_word(tokens.slot, 1);
      pin(accumulators);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(accumulators, a[0] + step * 4, operand(b + step * 2), step > 0);
      wgmma_commit();
      decode_half(chunk_of(weights.slot), words, 1, a[1]);
      if constexpr (!kLoadsAreOperands) release_weights();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(accumulators, a[1] + step * 4, operand(b1 + step * 2), true);
      wgmma_commit();
      if constexpr (kLoadsAreOperands) release_weights();
    };
    load(scales);
    issue();
    for (int left = chunks - 1; left > 0; --left) {
      wgmma_wait<1>();  // a[0] is free
      load(next_scales);
      wgmma_wait<0>();
      release_tokens();
      promote(sums, accumulators, scales);
      scales[0] = next_scales[0], scales[1] = next_scales[1];
      issue();
    }
    wgmma_wait<0>();
    release_tokens();
    promote(sums, accumulators, scales);
  }

  /// Scales that change within a chunk, every kSteps * 16 columns or more: accumulators are promoted as often. One warpgroup's products
  /// run while the other promotes.
  template <int kSteps>
  __device__ void multiply_inside(float (&sums)[T::kCount]) {
    std::uint32_t words[kWords], a[kPairs];
    float accumulators[T::kCount], scales[2];
    for (int left = chunks; left > 0; --left) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      load_words(chunk, words, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decode_half(chunk, words, half, a);
        if (half == 0) shared.tokens_full[tokens.slot].wait(tokens.parity);
        const std::uint32_t b = token_word(tokens.slot, half);
#pragma unroll
        for (int group = 0; group < 4 / kSteps; ++group) {
          pin(accumulators);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int at = group * kSteps + step;
            wgmma_registers<T::kBf16>(accumulators, a + at * 4, operand(b + at * 2), step > 0);
          }
          wgmma_commit();
          load_scales(chunk, half * 4 + group * kSteps, scales);
          wgmma_wait<0>();
          promote(sums, accumulators, scales);
        }
      }
      release_weights();
      release_tokens();
    }
  }

  RingPlace weights, tokens;
  DecodeState state;
};

}  // namespace narrow::cuda::sm90
