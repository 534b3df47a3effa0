#pragma once
/// The consumers' main loops: from packed weights and tokens in shared memory to sums in registers.

#include "kernels/cuda/sm90/elect.cuh"
#include "kernels/cuda/sm90/weight_tile.cuh"
#include "kernels/cuda/sm90/wgmma_registers.cuh"

namespace narrow::cuda::sm90 {

/// A consumer warpgroup's way through its tiles. Shared: of split tiles (weight_split.cuh) another one.
template <class T, class Shared = WeightShared<T>>
class WeightConsumer {
 public:
  __device__ WeightConsumer(const WeightParams& params, const Shared& memory)
      : p(params), shared(memory), lane(static_cast<int>(threadIdx.x) % 32), warp(static_cast<int>(threadIdx.x) % 128 / 32) {
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in all lanes, and known to be
    row_group = group % T::kRowGroups;
    depth_group = group / T::kRowGroups;
    state.shift = p.shift;
    state.magnitude = p.magnitude;
    asm volatile("mov.b32 %0, %1;" : "=r"(state.magic) : "r"(T::kBf16 ? 0x43004300u : 0x64006400u));
    if constexpr (T::Decode::kKind == WeightKind::kInteger) {
      T::Decode::template set_zero<T::kBf16>(state, 0, p.integer_offset);
      T::Decode::template set_zero<T::kBf16>(state, 1, p.integer_offset);
    }
  }

  /// The sums of the next `count` chunks.
  __device__ void multiply(float (&sums)[T::kCount], int count) {
    chunks = count;
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;
    if constexpr (T::kInTurn) {
      if constexpr (T::Decode::kKind != WeightKind::kDense)
        if (p.mode == ScaleMode::kChunk) return multiply_in_turn<true>(sums);
      multiply_in_turn<false>(sums);
    } else if constexpr (T::kPromotes) {
      p.step == 16 ? multiply_inside<1>(sums) : multiply_inside<2>(sums);
    } else {
      if constexpr (T::Decode::kKind != WeightKind::kDense)
        if (p.mode == ScaleMode::kChunk) return multiply_steadily<true>(sums);
      multiply_steadily<false>(sums);
    }
  }

  /// Of split tiles: adds the products of units of two chunks, of which `count` are there, to the sums. Weights and tokens of a unit lie in
  /// one slot. kRescales as below: then half a chunk is decoded while the products of the half before run, else a chunk at a time.
  template <bool kRescales>
  __device__ void multiply_units(float (&sums)[T::kCount], int units, int count) {
    constexpr int kSteps = kRescales ? 4 : 8;
    std::uint32_t words[kWords], a[2 * kPairs];
    float unit_of[2] = {1.0f, 1.0f};
    const std::byte* first_chunk = shared.weights + row_group * 2 * p.chunk_bytes;
    const std::uint32_t first_word = kept(shared_address(first_chunk) + warp * (32 * 8 * T::kBits) + lane * 16);
    [[maybe_unused]] const std::uint32_t first_scale = kept(shared_address(first_chunk) + p.scale_offset + (warp * 16 + lane / 4) * 4);
    const std::uint32_t full = kept(shared.full->address()), empty = kept(shared.empty->address());
    const std::uint32_t first_token = __shfl_sync(0xFFFFFFFFu, operand_word(shared_address(shared.tokens)), 0);
    RingPlace at;
    std::uint32_t before = 0;  // the barrier of the slot whose tokens products may still read
    for (int unit = 0; unit < units; ++unit) {
      const auto slot = static_cast<std::uint32_t>(at.slot);
      wait_at(full + slot * 8, at.parity);
#pragma unroll 1
      for (int which = 0; which < 2 && 2 * unit + which < count; ++which) {
        const auto offset = static_cast<std::uint32_t>(at.slot * p.slot_bytes + which * p.chunk_bytes);
        const std::byte* chunk = first_chunk + offset;
        load_words_at(first_word + offset, words);
        load_zeros(chunk, 0);
        [[maybe_unused]] float scales[2] = {1.0f, 1.0f};
        if constexpr (kRescales) {
          if (p.scale == ChunkScale::kFloat) {
            scales[0] = load_shared(first_scale + offset);
            scales[1] = load_shared(first_scale + offset + 32);
          } else {
            load_scales(chunk, 0, scales);
          }
        }
        const std::uint32_t b = first_token + static_cast<std::uint32_t>(at.slot * (p.token_bytes / 16) + which * (T::kTokens * 16));
#pragma unroll
        for (int first = 0; first < 8; first += kSteps) {
          std::uint32_t(&fragments)[4 * kSteps] = *reinterpret_cast<std::uint32_t(*)[4 * kSteps]>(a + 4 * first);
          wgmma_wait<kRescales ? 1 : 0>();
          if constexpr (!kRescales) pin(sums);
          pin_words(fragments);
          if (which == 0 && first == (kRescales ? 4 : 0) && before != 0) {
            __syncwarp();
            if (is_elected()) arrive_at(before);
          }
#pragma unroll
          for (int step = first; step < first + kSteps; step += 4) decode_half(chunk, words, step / 4, a + 4 * step);
          if constexpr (kRescales)
            if (first == 0) {
              const float ratios[2] = {unit_of[0] * reciprocal(scales[0]), unit_of[1] * reciprocal(scales[1])};
              unit_of[0] = scales[0], unit_of[1] = scales[1];
              wgmma_wait<0>();
              pin(sums);
#pragma unroll
              for (int i = 0; i < T::kCount; ++i) sums[i] *= ratios[i / 2 % 2];
            }
          pin(sums);
          wgmma_fence();
#pragma unroll
          for (int step = first; step < first + kSteps; ++step)
            wgmma_registers<T::kBf16>(sums, a + 4 * step, operand(b + step / 4 * (T::kTokens * 8) + step % 4 * 2), true);
          wgmma_commit();
        }
      }
      before = empty + slot * 8;
      at.advance(p.weight_slots);
    }
    wgmma_wait<0>();
    pin(sums);
    if constexpr (kRescales)
#pragma unroll
      for (int i = 0; i < T::kCount; ++i) sums[i] *= unit_of[i / 2 % 2];
  }

  const WeightParams& p;
  const Shared& shared;
  int lane, warp, row_group, depth_group, chunks = 0;

  /// What scales are multiplied by before they are folded: powers of two, of rows t / 4 and t / 4 + 8.
  __device__ void set_folds(const float (&powers)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      folds[i] = powers[i];
      const int exponent = static_cast<int>(__float_as_uint(powers[i]) >> 23) - 127;
      fold_bits[i] = (static_cast<std::uint32_t>((T::kBf16 ? exponent : exponent - 112) * 128) & 0xFFFFu) * 0x10001u;
    }
  }

 private:
  static constexpr int kWords = T::kBits <= 8 ? 2 * T::kBits : 1;  ///< of a chunk; dense weights are loaded into fragments

  __device__ void load_words(const std::byte* chunk, std::uint32_t (&words)[kWords]) const {
    if constexpr (T::kBits <= 8) {
      const std::byte* mine = chunk + warp * (32 * 8 * T::kBits);
#pragma unroll
      for (int unit = 0; unit < kWords / 4; ++unit)
        *reinterpret_cast<uint4*>(words + unit * 4) = *reinterpret_cast<const uint4*>(mine + (unit * 32 + lane) * 16);
      if constexpr (kWords % 4 == 2)
        *reinterpret_cast<uint2*>(words + kWords - 2) = *reinterpret_cast<const uint2*>(mine + kWords / 4 * 512 + lane * 8);
    }
  }
  /// The same from the address of this lane's first word.
  __device__ void load_words_at(std::uint32_t address, std::uint32_t (&words)[kWords]) const {
    if constexpr (T::kBits <= 8) {
#pragma unroll
      for (int unit = 0; unit < kWords / 4; ++unit) load_shared(address + unit * 512, words + unit * 4);
      if constexpr (kWords % 4 == 2) load_shared_pair(address + kWords / 4 * 512 - lane * 8, words + kWords - 2);
    }
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
  /// The fragments of four steps of 16 columns from kFirst on, whose words are loaded (of dense weights, loads them).
  template <int kFirst>
  __device__ void decode_steps(const std::byte* chunk, std::uint32_t (&words)[kWords], std::uint32_t* a) {
    if constexpr (T::Decode::kKind == WeightKind::kDense) {
      const std::byte* mine = chunk + warp * (32 * 8 * T::kBits) + lane * 16;
#pragma unroll
      for (int step = 0; step < 4; ++step)
        *reinterpret_cast<uint4*>(a + 4 * step) = *reinterpret_cast<const uint4*>(mine + (kFirst + step) * 512);
    } else {
      const std::uint32_t* its = words + kFirst / 4 * T::kBits;
      [&]<int... kStep>(std::integer_sequence<int, kStep...>) {
        (T::Decode::template decode_step<T::kBf16, kStep, true>(its, state, a + 4 * kStep), ...);
      }
      (std::make_integer_sequence<int, 4>{});
    }
    if constexpr (T::Decode::template kCentred<T::kBf16>)
      if (p.zero_offset != 0 || p.integer_offset != 128)
#pragma unroll
        for (int step = 0; step < 4; ++step) T::Decode::take_off(state, a + 4 * step);
    if constexpr (T::Decode::kKind != WeightKind::kDense)
      if (p.mode == ScaleMode::kFold) fold_scales<kFirst>(chunk, a);
        // Keeps the compiler from computing fragments after the fence that products need before them.
#pragma unroll
    for (int i = 0; i < kPairs; ++i) asm volatile("" : "+r"(a[i])::"memory");
  }
  __device__ void decode_half(const std::byte* chunk, std::uint32_t (&words)[kWords], int half, std::uint32_t* a) {
    half == 0 ? decode_steps<0>(chunk, words, a) : decode_steps<4>(chunk, words, a);
  }
  /// Multiplies fragments by their scales, one per 16 columns, or per 32 and more.
  template <int kFirst>
  __device__ void fold_scales(const std::byte* chunk, std::uint32_t* a) const {
    const auto* stored = reinterpret_cast<const std::uint16_t*>(chunk + p.scale_offset);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint16_t* first = stored + scale_index(kFirst) + (row * 8 * kChunkDepth >> p.step_shift);
      const auto scales_of = [&](std::uint32_t pair, std::uint32_t* two) {
        if constexpr (T::Decode::kKind == WeightKind::kInteger) {  // folded scales may be subnormal numbers of fp16
          two[0] = twice<T::kBf16>(__uint_as_float(pair << 16) * folds[row]);
          two[1] = twice<T::kBf16>(__uint_as_float(pair & 0xFFFF0000u) * folds[row]);
        } else {  // all else is normal, or too small beside codes of zero: a bf16's bits with another bias, of fp16 three to the left
          const std::uint32_t moved = __viaddmax_s16x2(pair, fold_bits[row], 0u), both = T::kBf16 ? moved : moved << 3;
          two[0] = half_twice<0>(both);
          two[1] = half_twice<1>(both);
        }
      };
      const auto scale_step = [&](int step, std::uint32_t scale) {
#pragma unroll
        for (int i = row; i < 4; i += 2) a[step * 4 + i] = multiply_pair<T::kBf16>(a[step * 4 + i], scale);
      };
      if (p.step == 16) {
        const uint2 four = *reinterpret_cast<const uint2*>(first);
        std::uint32_t scales[4];
        scales_of(four.x, scales);
        scales_of(four.y, scales + 2);
#pragma unroll
        for (int step = 0; step < 4; ++step) scale_step(step, scales[step]);
      } else {
        std::uint32_t scales[2];
        scales_of(p.step == 32 ? *reinterpret_cast<const std::uint32_t*>(first) : *first * 0x10001u, scales);
#pragma unroll
        for (int step = 0; step < 4; ++step) scale_step(step, scales[step / 2]);
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
  __device__ const std::byte* chunk_of(int slot) const { return shared.weights + (slot * T::kRowGroups + row_group) * p.chunk_bytes; }
  /// The descriptor of the first 16 columns of a slot of tokens; 2 more for the next 16, kTokens * 8 more for the next 64.
  __device__ std::uint32_t token_word(int slot) const {
    const auto units = static_cast<std::uint32_t>(slot * (T::kTokenBytes / 16));
    return __shfl_sync(0xFFFFFFFFu, operand_word(shared_address(shared.tokens)) + units, 0);
  }
  __device__ static void promote(float (&sums)[T::kCount], float (&accumulators)[T::kCount], const float (&scales)[2]) {
    pin(accumulators);
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = __fmaf_rn(accumulators[i], scales[i / 2 % 2], sums[i]);
  }

  /// Products add to the sums themselves, in groups of half a chunk (of 128x128, a whole one), which are decoded while the products of the
  /// group before run. kRescales: the sums of a chunk are in units of its scale, sum = sum * (scale before / scale) + products, while other
  /// warpgroups' products run.
  template <bool kRescales>
  __device__ void multiply_steadily(float (&sums)[T::kCount]) {
    std::uint32_t words[kWords], a[2][kGroup * kPairs];
    float unit[2] = {1.0f, 1.0f};
    RingPlace before = tokens;
    bool lent = false;  // the slot `before` is still read by products
    const auto give_back = [&] {
      if (lent) release(shared.tokens_empty[before.slot]);
      lent = false;
    };
    constexpr bool kIsLate = kLoadsAreOperands || (kRescales && kGroup == 2);  // of the weights' slot: scales are read last
    const auto multiply_group = [&]<int kHalf>(std::integral_constant<int, kHalf>, std::uint32_t(&fragments)[kGroup * kPairs]) {
      constexpr bool kBegins = kHalf == 0, kEnds = kHalf + kGroup == 2;
      if constexpr (kBegins) {
        shared.weights_full[weights.slot].wait(weights.parity);
        load_words(chunk_of(weights.slot), words);
        load_zeros(chunk_of(weights.slot), 0);
      }
      const std::byte* chunk = chunk_of(weights.slot);
      [[maybe_unused]] float scales[2];
      if constexpr (kRescales && kBegins) load_scales(chunk, 0, scales);
#pragma unroll
      for (int half = kHalf; half < kHalf + kGroup; ++half) decode_half(chunk, words, half, fragments + (half - kHalf) * kPairs);
      if constexpr (kEnds && !kIsLate) release_weights();
      shared.tokens_full[tokens.slot].wait(tokens.parity);
      const std::uint32_t b = token_word(tokens.slot);
      if constexpr (kRescales && kBegins) {
        const float ratios[2] = {__fdividef(unit[0], scales[0]), __fdividef(unit[1], scales[1])};
        unit[0] = scales[0], unit[1] = scales[1];
        wgmma_wait<0>();
        give_back();
        pin(sums);
#pragma unroll
        for (int i = 0; i < T::kCount; ++i) sums[i] *= ratios[i / 2 % 2];
        if constexpr (kTurns) wait_for_turn();
      }
      pin(sums);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4 * kGroup; ++step)
        wgmma_registers<T::kBf16>(sums, fragments + step * 4, operand(b + step / 4 * (T::kTokens * 8) + step % 4 * 2), true);
      wgmma_commit();
      if constexpr (kEnds && kIsLate) release_weights();
      if constexpr (!kRescales || !kBegins) {
        wgmma_wait<1>();
        give_back();
      }
      if constexpr (kRescales && kTurns && kEnds) pass_turn();
      before = tokens;
      lent = true;
      tokens.advance(p.token_slots);
    };
    int left = chunks;
    if constexpr (kGroup == 2)
      if (left % 2 == 1) {
        multiply_group(std::integral_constant<int, 0>{}, a[1]);
        wgmma_wait<0>();
        pin(sums);
        give_back();
        --left;
      }
    for (; left > 0; left -= kGroup) {
      multiply_group(std::integral_constant<int, 0>{}, a[0]);
      multiply_group(std::integral_constant<int, (kGroup == 1 ? 1 : 0)>{}, a[1]);
    }
    wgmma_wait<0>();
    pin(sums);
    give_back();
    if constexpr (kRescales)
#pragma unroll
      for (int i = 0; i < T::kCount; ++i) sums[i] *= unit[i / 2 % 2];
  }
  static constexpr int kGroup = T::kTokenDepth / 64;

  /// Of four warpgroups: the chunks of this one, every kDepthGroups-th. A group of steps is decoded while the products of other warpgroups
  /// run. Products begin when all four warps of a warpgroup are there, so that groups are as large as registers allow; and what the loop
  /// takes again and again is kept in registers. kRescales as above.
  template <bool kRescales>
  __device__ void multiply_in_turn(float (&sums)[T::kCount]) {
    static_assert(!kLoadsAreOperands);
    constexpr int kSteps = T::kCount <= 16 ? 8 : 4;
    std::uint32_t words[kWords], a[4 * kSteps];
    float unit[2] = {1.0f, 1.0f};
    RingPlace token_at = place_at(position + depth_group, p.token_slots), weight_at = place_at(position + depth_group, p.weight_slots);
    const std::uint32_t first_chunk = shared_address(chunk_of(0)), slot_bytes = static_cast<std::uint32_t>(T::kRowGroups * p.chunk_bytes);
    const std::uint32_t first_word = kept(first_chunk + warp * (32 * 8 * T::kBits) + lane * 16);
    [[maybe_unused]] const std::uint32_t first_scale = kept(first_chunk + p.scale_offset + (warp * 16 + lane / 4) * 4);
    const std::uint32_t weights_full = kept(shared.weights_full->address()), weights_empty = kept(shared.weights_empty->address());
    const std::uint32_t tokens_full = kept(shared.tokens_full->address()), tokens_empty = kept(shared.tokens_empty->address());
    const auto give_back = [&](std::uint32_t barrier) {
      __syncwarp();
      if (lane == 0) arrive_at(barrier);
    };
    std::uint32_t before = 0;  // the barrier of the slot of tokens that products may still read
    for (int left = chunks - depth_group; left > 0; left -= T::kDepthGroups) {
      const auto weight_slot = static_cast<std::uint32_t>(weight_at.slot), token_slot = static_cast<std::uint32_t>(token_at.slot);
      wait_at(weights_full + weight_slot * 8, weight_at.parity);
      const std::byte* chunk = chunk_of(weight_at.slot);
      const std::uint32_t slot = weight_slot * slot_bytes;
      load_words_at(first_word + slot, words);
      load_zeros(chunk, 0);
      [[maybe_unused]] float scales[2] = {1.0f, 1.0f};
      if constexpr (kRescales) {
        if (p.scale == ChunkScale::kFloat) {
          scales[0] = load_shared(first_scale + slot);
          scales[1] = load_shared(first_scale + slot + 32);
        } else {
          load_scales(chunk, 0, scales);
        }
      }
      const std::uint32_t b = token_word(token_at.slot);
#pragma unroll
      for (int first = 0; first < 8; first += kSteps) {
        wgmma_wait<0>();
        pin(sums);
        pin_words(a);
        if (first == 0 && before != 0) give_back(before);
#pragma unroll
        for (int step = 0; step < kSteps; step += 4) decode_half(chunk, words, (first + step) / 4, a + step * 4);
        if constexpr (kRescales)
          if (first == 0) {
            const float ratios[2] = {unit[0] * reciprocal(scales[0]), unit[1] * reciprocal(scales[1])};
            unit[0] = scales[0], unit[1] = scales[1];
#pragma unroll
            for (int i = 0; i < T::kCount; ++i) sums[i] *= ratios[i / 2 % 2];
          }
        if (first + kSteps == 8) give_back(weights_empty + weight_slot * 8);
        if (first == 0) wait_at(tokens_full + token_slot * 8, token_at.parity);
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int step = first; step < first + kSteps; ++step)
          wgmma_registers<T::kBf16>(sums, a + (step - first) * 4, operand(b + step / 4 * (T::kTokens * 8) + step % 4 * 2), true);
        wgmma_commit();
      }
      before = tokens_empty + token_slot * 8;
      weight_at.advance(p.weight_slots, T::kDepthGroups);
      token_at.advance(p.token_slots, T::kDepthGroups);
    }
    wgmma_wait<0>();
    pin(sums);
    if (before != 0) give_back(before);
    position += chunks;
    if constexpr (kRescales)
#pragma unroll
      for (int i = 0; i < T::kCount; ++i) sums[i] *= unit[i / 2 % 2];
  }
  __device__ static RingPlace place_at(int position, int slots) { return {position % slots, static_cast<unsigned>(position / slots) & 1u}; }
  template <int kCount>
  __device__ static void pin_words(std::uint32_t (&words)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(words[i])::"memory");
  }

  /// Turns, of tiles of 256 tokens: a warpgroup issues the products of a chunk when those of the other are half done, so that never both
  /// change units at once; left to themselves they do.
  static constexpr bool kTurns = T::kTokens == 256;
  __device__ void wait_for_turn() {
    if (row_group > 0)
      shared.turn[row_group - 1].wait(turns);
    else if (turns > 0)
      shared.turn[T::kRowGroups - 1].wait(turns - 1);
  }
  __device__ void pass_turn() {
    release(shared.turn[row_group]);
    ++turns;
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
      load_words(chunk, words);
      if (p.step == kChunkDepth) load_zeros(chunk, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        decode_half(chunk, words, half, a);
        if (half == 0) shared.tokens_full[tokens.slot].wait(tokens.parity);
        const std::uint32_t b = token_word(tokens.slot) + static_cast<std::uint32_t>(half * T::kTokens * 8);
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
  int position = 0;    ///< chunks of the pieces before
  unsigned turns = 0;  ///< chunks that this warpgroup has issued
  DecodeState state;
  float folds[2] = {1.0f, 1.0f};
  std::uint32_t fold_bits[2] = {};  ///< the same as what is added to the bits of two scales
};

}  // namespace narrow::cuda::sm90
