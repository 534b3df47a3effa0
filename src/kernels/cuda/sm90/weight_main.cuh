#pragma once
/// The Hopper main loop of products with prepared weights, y^T = W * x^T: one kernel for all formats, scales and numbers of rows of x.
///
/// Mapping:  persistent thread blocks. One warp copies chunks of packed weights, one copies boxes of x, both into rings of shared memory.
///           Consumer warpgroups decode 64 rows of the weight into wgmma's register operand and multiply them with the tokens in shared
///           memory. A tile has kRowGroups * 64 rows and kTokens tokens. kDepthGroups warpgroups, and the thread blocks of a cluster, take
///           turns along k and send their sums to the first one's shared memory, where they are added in one order.
/// Scales:   those of a row multiply its sum at the end. Those that change along k multiply the accumulators of their columns in fp32:
///           sum = fma(accumulator, scale, sum), every 128 columns (tiles of up to 128 tokens) or less (up to 32).
/// Requires: compute capability 9.0; rows of x 16-byte aligned (ops/cuda_weights.cc sees to it).
/// Bound:    the bytes of the weight, or decoding, up to about 100 tokens, then the tensor cores. Meaning: reference/matmul.cc within the
///           contract's bound.

#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma_registers.cuh"
#include "kernels/cuda/sm90/weight_decode.cuh"
#include "kernels/cuda/weight_finish.cuh"

namespace narrow::cuda::sm90 {

/// What a kernel is told at run time.
struct WeightParams {
  const std::uint8_t* chunks;
  const float* factors;
  int m, n;
  int row_chunks, depth_chunks, chunk_bytes;
  int scale_offset, zero_offset;  ///< inside a chunk; zero_offset 0: none
  ChunkScale scale;
  int step, step_shift;  ///< columns that share a scale, and their logarithm
  int integer_offset;  ///< of signed integers: 2^(bits-1)
  std::uint32_t shift, magnitude;
  int row_tiles, token_tiles, band, workers, parts;
  int weight_slots, token_slots;
  bool box_stores;    ///< y is stored in boxes of 64 columns x 32 rows
  bool plain_stores;  ///< 16-bit y of few rows, nothing added to it
  WeightEpilogue epilogue;
  void* y;
  std::int64_t y_pitch;
};

/// What is known when a kernel is compiled.
template <class Decoder_, bool kBf16_, int kTokens_, int kRowGroups_, int kDepthGroups_>
struct WeightTile {
  using Decode = Decoder_;
  static constexpr bool kBf16 = kBf16_;
  static constexpr int kTokens = kTokens_, kRowGroups = kRowGroups_, kDepthGroups = kDepthGroups_, kBits = Decode::kBits;
  static constexpr int kGroups = kRowGroups * kDepthGroups, kConsumerThreads = kGroups * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kCount = kTokens / 2;          ///< accumulators of a thread
  static constexpr bool kWarps = kTokens <= 32;       ///< mma of single warps, which wait for nothing; else wgmma
  static constexpr bool kRowScales = kTokens == 256;  ///< no second set of sums: scales along k are left to smaller tiles
  static constexpr int kUnit = kTokens <= 16 ? 2 : 1;                    ///< chunks that a warpgroup finds in a slot
  static constexpr int kSlotChunks = kDepthGroups * kUnit;             ///< chunks along k of a slot of weights
  static constexpr int kTokenDepth = kRowScales ? 64 : kChunkDepth * kSlotChunks;  ///< columns of a slot of tokens
  static constexpr int kTokenBytes = kTokens * kTokenDepth * 2;
  static constexpr int kStoreBytes = kRowGroups * 8192;  ///< per warpgroup, two pieces of 32 tokens x 64 columns, or one in fp32
  static constexpr int kPartialBytes = kTokens * 64 * 4;  ///< a warpgroup's sums
  static constexpr int kEntryRegisters = kGroups == 4 ? 96 : 168;  ///< 65536 / threads, in steps of 8
  static constexpr int kProducerRegisters = kGroups == 4 ? 56 : 40;
  static constexpr int kConsumerRegisters = kGroups == 4 ? 104 : 232;
  static_assert(kConsumerRegisters * kConsumerThreads + kProducerRegisters * 128 <= kEntryRegisters * kThreads);
  static_assert(!kRowScales || kDepthGroups == 1);

  static constexpr int partial_slots(int parts) { return parts * kDepthGroups - 1; }
  static constexpr int shared_bytes(int weight_slots, int token_slots, int chunk_bytes, int parts) {
    return 1024 + token_slots * kTokenBytes + kStoreBytes + weight_slots * kRowGroups * kSlotChunks * chunk_bytes +
           partial_slots(parts) * kRowGroups * kPartialBytes + (2 * (weight_slots + token_slots) + 2 * kRowGroups) * 8;
  }
};

template <class T>
struct WeightShared {
  std::byte *tokens, *stores, *weights, *partials;
  /// Of single warps' products, slots of weights and tokens go together and complete on weights_full.
  Barrier *weights_full, *weights_empty, *tokens_full, *tokens_empty;
  Barrier *partials_full, *partials_read;  ///< one per row group; of the first thread block, and of each

  __device__ WeightShared(std::byte* memory, const WeightParams& p) {
    tokens = memory + (1024 - shared_address(memory) % 1024) % 1024;
    stores = tokens + p.token_slots * T::kTokenBytes;
    weights = stores + T::kStoreBytes;
    partials = weights + p.weight_slots * T::kRowGroups * T::kSlotChunks * p.chunk_bytes;
    weights_full = reinterpret_cast<Barrier*>(partials + T::partial_slots(p.parts) * T::kRowGroups * T::kPartialBytes);
    weights_empty = weights_full + p.weight_slots;
    tokens_full = T::kWarps ? weights_full : weights_empty + p.weight_slots;
    tokens_empty = T::kWarps ? weights_empty : tokens_full + p.token_slots;
    partials_full = weights_empty + p.weight_slots + 2 * p.token_slots;
    partials_read = partials_full + T::kRowGroups;
  }
};

/// A place in a ring whose length is known at run time.
struct RingPlace {
  int slot = 0;
  unsigned parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1u;
  }
};

/// A tile's first chunk of rows and first token. Tiles that run at the same time cover a few tiles of tokens by many of rows.
struct WeightPlace {
  int row_chunk, token;
};
template <class T>
__device__ WeightPlace place_of(const WeightParams& p, int tile) {
  const int in_band = p.band * p.row_tiles, band = tile / in_band, rest = tile - band * in_band;
  const int width = min(p.band, p.token_tiles - band * p.band), row = rest / width;
  return {row * T::kRowGroups, (band * p.band + rest - row * width) * T::kTokens};
}

/// The chunks along k of one thread block of a cluster.
struct DepthRange {
  int begin, count;
};
__device__ inline DepthRange depth_of(const WeightParams& p, int rank) {
  const int begin = p.depth_chunks * rank / p.parts;
  return {begin, p.depth_chunks * (rank + 1) / p.parts - begin};
}

/// One thread: a slot of weights has kUnit chunks for each warpgroup, those of a row of chunks in one copy.
template <class T>
__device__ void produce_weights(const WeightParams& p, const WeightShared<T>& shared, int worker, int rank) {
  const DepthRange depth = depth_of(p, rank);
  const int slot_bytes = T::kSlotChunks * p.chunk_bytes, tiles = p.row_tiles * p.token_tiles;
  const std::uint8_t* from[T::kRowGroups];
  const auto go_to = [&](int tile) {
    const WeightPlace place = place_of<T>(p, tile);
#pragma unroll
    for (int group = 0; group < T::kRowGroups; ++group) {
      const std::int64_t row = min(place.row_chunk + group, p.row_chunks - 1);
      from[group] = p.chunks + (row * p.depth_chunks + depth.begin) * p.chunk_bytes;
    }
  };
  RingPlace at;
  for (int tile = worker; tile < tiles; tile += p.workers) {
    go_to(tile);
    if (tile == worker) {  // while earlier kernels still run
#pragma unroll
      for (int group = 0; group < T::kRowGroups; ++group)
        prefetch_bulk(from[group], static_cast<std::uint32_t>(min(depth.count * p.chunk_bytes, p.weight_slots * slot_bytes)));
      wait_for_earlier_kernels();
    }
    for (int left = depth.count; left > 0; left -= T::kSlotChunks, at.advance(p.weight_slots)) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(min(left, T::kSlotChunks) * p.chunk_bytes);
      shared.weights_empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.weights_full[at.slot];
      full.arrive_expecting(T::kRowGroups * bytes);
#pragma unroll
      for (int group = 0; group < T::kRowGroups; ++group) {
        std::byte* to = shared.weights + (at.slot * T::kRowGroups + group) * slot_bytes;
        if (p.token_tiles == 1) copy_bulk_once(to, from[group], bytes, full);
        else copy_bulk(to, from[group], bytes, full);
        from[group] += slot_bytes;
      }
    }
  }
}

/// One thread: a slot of tokens has the columns of a slot of weights (of tiles of 256 tokens, half of them), 64 at a time.
template <class T>
__device__ void produce_tokens(const WeightParams& p, const CUtensorMap& x, const WeightShared<T>& shared, int worker, int rank) {
  const DepthRange depth = depth_of(p, rank);
  RingPlace at;
  for (int tile = worker; tile < p.row_tiles * p.token_tiles; tile += p.workers) {
    const WeightPlace place = place_of<T>(p, tile);
    if (tile == worker) wait_for_earlier_kernels();
    for (int plane = 2 * depth.begin; plane < 2 * (depth.begin + depth.count); plane += T::kTokenDepth / 64, at.advance(p.token_slots)) {
      shared.tokens_empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.tokens_full[at.slot];
      full.arrive_expecting(T::kTokenBytes);
      copy_box_3d(shared.tokens + at.slot * T::kTokenBytes, x, 0, place.token, plane, full);
    }
  }
}

/// A consumer warpgroup's way through its tiles.
template <class T>
class WeightConsumer {
 public:
  __device__ WeightConsumer(const WeightParams& params, const WeightShared<T>& memory, int rank)
      : p(params), shared(memory), lane(static_cast<int>(threadIdx.x) % 32), warp(static_cast<int>(threadIdx.x) % 128 / 32) {
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in all lanes, and known to be
    row_group = group % T::kRowGroups;
    depth_group = group / T::kRowGroups;
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
    if constexpr (T::kWarps) {
      if (p.scale == ChunkScale::kNone) multiply_warps<0>(sums);
      else if (p.step == 128) multiply_warps<8>(sums);
      else if (p.step == 64) multiply_warps<4>(sums);
      else if (p.step == 32) multiply_warps<2>(sums);
      else multiply_warps<1>(sums);
    } else if constexpr (T::kRowScales) {
      multiply_rows(sums);
    } else {
      multiply_chunks(sums);
    }
  }

  const WeightParams& p;
  const WeightShared<T>& shared;
  int lane, warp, row_group, depth_group, chunks;

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
  __device__ void release_tokens() {
    release(shared.tokens_empty[tokens.slot]);
    tokens.advance(p.token_slots);
  }
  /// This warpgroup's first chunk of a slot.
  __device__ const std::byte* chunk_of(int slot) const {
    return shared.weights + ((slot * T::kRowGroups + row_group) * T::kSlotChunks + depth_group * T::kUnit) * p.chunk_bytes;
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

  /// Few tokens: products of single warps, which wait for nothing. Scales change every kBlock steps of 16 columns, where the accumulators
  /// are promoted; 0: never.
  template <int kBlock>
  __device__ void multiply_warps(float (&sums)[T::kCount]) {
    std::uint32_t words[kWords];
    float promoted[kBlock > 0 ? T::kCount : 1], scales[2];
    float* accumulators = kBlock > 0 ? promoted : sums;
    // Row l % 8 of matrix l / 8: 8 tokens x 8 columns each, two along the columns and two along tokens, or, of 8 tokens, four along the
    // columns, which are two steps. 16-byte pieces are swizzled.
    constexpr bool kEight = T::kTokens == 8;
    const int row = kEight ? lane % 8 : lane / 16 * 8 + lane % 8, piece = (kEight ? lane / 8 : lane / 8 % 2) ^ (lane % 8);
    const std::uint32_t first = shared_address(shared.tokens) +
                                static_cast<std::uint32_t>(depth_group * T::kUnit * 2 * T::kTokens * 128 + row * 128 + piece * 16);
    [[maybe_unused]] std::uint32_t b[4];
    for (int left = chunks; left > 0; left -= T::kSlotChunks) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      std::uint32_t b_address = first + static_cast<std::uint32_t>(weights.slot * T::kTokenBytes);
#pragma unroll 1
      for (int unit = min(left - depth_group * T::kUnit, T::kUnit); unit > 0; --unit) {
        if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
        load_zeros(chunk, 0);
        const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {  // 16 columns
          constexpr int kHalf = kStep / 4;
          if constexpr (kBlock > 0 && kStep % kBlock == 0) {
            load_scales(chunk, kStep, scales);
            if constexpr (kStep > 0) load_zeros(chunk, kStep);
#pragma unroll
            for (int i = 0; i < T::kCount; ++i) accumulators[i] = 0.0f;
          }
          if constexpr (T::kBits > 8 && kStep % 4 == 0) load_words(chunk, words, kHalf);
          std::uint32_t a[4];
          T::Decode::template decode_step<T::kBf16, kStep % 4>(words + (T::kBits <= 8 ? kHalf * T::kBits : 0), state, a);
          if constexpr (kEight) {
            if constexpr (kStep % 2 == 0) load_matrices((b_address ^ (kStep % 4 * 32)) + kHalf * T::kTokens * 128, b);
            mma_16x8<T::kBf16>(accumulators, a, b[kStep % 2 * 2], b[kStep % 2 * 2 + 1]);
          }
#pragma unroll
          for (int block = 0; block < T::kTokens / 16; ++block) {
            load_matrices((b_address ^ (kStep % 4 * 32)) + kHalf * T::kTokens * 128 + block * 2048, b);
            mma_16x8<T::kBf16>(accumulators + block * 8, a, b[0], b[1]);
            mma_16x8<T::kBf16>(accumulators + block * 8 + 4, a, b[2], b[3]);
          }
          if constexpr (kBlock > 0 && (kStep + 1) % kBlock == 0)
#pragma unroll
            for (int i = 0; i < T::kCount; ++i) sums[i] = __fmaf_rn(accumulators[i], scales[i / 2 % 2], sums[i]);
        };
        [&]<int... kStep>(std::integer_sequence<int, kStep...>) {
          (step(std::integral_constant<int, kStep>{}), ...);
        }(std::make_integer_sequence<int, 8>{});
        chunk += p.chunk_bytes;
        b_address += 2 * T::kTokens * 128;
      }
      release_weights();
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
        if (half == 1) release_weights();
        shared.tokens_full[tokens.slot].wait(tokens.parity);
        const std::uint32_t b = token_word(tokens.slot, 0);
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(sums, a[half] + step * 4, operand(b + step * 2), true);
        wgmma_commit();
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
      load_scales(chunk, 0, its);
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
      release_weights();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(accumulators, a[1] + step * 4, operand(b1 + step * 2), true);
      wgmma_commit();
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

  RingPlace weights, tokens;
  DecodeState state;
};

/// Adds the sums of all warpgroups and thread blocks that share the tile. True in the one that has them all then, of every tile another
/// one, so that none falls behind.
template <class T>
__device__ bool add_partials(const WeightParams& p, const WeightShared<T>& shared, int row_group, int depth_group, int rank, unsigned use,
                             float (&sums)[T::kCount]) {
  const int all = p.parts * T::kDepthGroups;
  if (all == 1) return true;
  const int thread = thread_here() % 128, lane = thread % 32, index = rank * T::kDepthGroups + depth_group;
  const int root = static_cast<int>(use % static_cast<unsigned>(all)), root_rank = root / T::kDepthGroups;
  const auto words_of = [&](int partial) {
    return reinterpret_cast<float4*>(shared.partials + (partial * T::kRowGroups + row_group) * T::kPartialBytes) + thread;
  };
  Barrier& full = shared.partials_full[row_group];
  Barrier& read = shared.partials_read[row_group];
  if (use > 0) read.wait(use - 1);  // the tile before is done with memory and barrier
  if (index != root) {
    float4* to = words_of(index - root - 1 + (index < root ? all : 0));
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i)
      send_remote(to + i * 128, {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}, full,
                  static_cast<std::uint32_t>(root_rank));
    return false;
  }
  // Every thread block is the root's in turn: its barrier's phases count its own turns.
  const unsigned turn = use / static_cast<unsigned>(all) * T::kDepthGroups + static_cast<unsigned>(root % T::kDepthGroups);
  if (thread == 0) full.arrive_expecting(static_cast<std::uint32_t>((all - 1) * T::kPartialBytes));
  full.wait(turn);
  for (int partial = 0; partial < all - 1; ++partial) {
    const float4* from = words_of(partial);
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i) {
      const float4 more = from[i * 128];
      sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
    }
  }
  __syncwarp();
  if (lane < p.parts) arrive_remote(read, static_cast<std::uint32_t>(lane));
  return true;
}

__device__ inline std::uint32_t pack_pair(bool half, float low, float high) {
  std::uint32_t result;
  if (half) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(clamp_half(high)), "f"(clamp_half(low)));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// 32 tokens x 64 columns of y as 16-bit values, in a tensor copy's swizzle.
__device__ inline void stage_box(bool half, const float* sums, std::byte* to) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float* s = sums + pair * 8;
    const int r = pair * 16 + lane / 16 * 8 + lane % 8;
    store_matrices_transposed(shared_address(to) + r * 128 + ((warp * 2 + lane / 8 % 2) ^ (r % 8)) * 16, pack_pair(half, s[0], s[1]),
                              pack_pair(half, s[2], s[3]), pack_pair(half, s[4], s[5]), pack_pair(half, s[6], s[7]));
  }
}

/// Up to 32 tokens as fp32, and from there element by element through any epilogue.
template <int kRows>
__device__ void stage_and_finish(const WeightParams& p, const float* sums, int column, int token, std::byte* to, int barrier) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
  float* values = reinterpret_cast<float*>(to);  // [kRows][64], columns exchanged against bank conflicts
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int r = i / 4 * 8 + lane % 4 * 2 + i % 2, c = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    values[r * 64 + (c ^ (lane % 4 * 8))] = sums[i];
  }
  named_sync(barrier, 128);
#pragma unroll 1
  for (int i = thread; i < min(kRows, p.m - token) * 64; i += 128) {
    const int r = i / 64, c = i % 64;
    const float v = values[r * 64 + (c ^ (r / 2 % 4 * 8))];
    if (column + c < p.n) finish_and_store(p.epilogue, v, token + r, column + c, p.n, p.y, p.y_pitch);
  }
}

/// Finishes and stores the sums of a warpgroup: 64 columns of y from `column` on, kTokens rows from `token` on.
template <class T>
__device__ void store_sums(const WeightParams& p, const CUtensorMap& y, float (&sums)[T::kCount], const float (&factors)[2], int column,
                           int token, std::byte* staging, int row_group) {
  const int thread = thread_here() % 128, lane = thread % 32, barrier = 1 + row_group;
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[i] *= factors[i / 2 % 2];
  std::byte* mine = staging + row_group * 8192;
  const bool half = p.epilogue.out == DType::kF16;
  if (p.plain_stores) {  // 16-bit values, two of a column at a time
    const int c = column + thread / 32 * 16 + lane / 4;
    auto* to = static_cast<std::uint16_t*>(p.y);
#pragma unroll
    for (int i = 0; i < T::kCount; i += 2) {
      const int row = token + i / 4 * 8 + lane % 4 * 2, at = c + i / 2 % 2 * 8;
      const std::uint32_t pair = pack_pair(half, sums[i], sums[i + 1]);
      if (at < p.n && row < p.m) to[row * p.y_pitch + at] = static_cast<std::uint16_t>(pair);
      if (at < p.n && row + 1 < p.m) to[(row + 1) * p.y_pitch + at] = static_cast<std::uint16_t>(pair >> 16);
    }
    return;
  }
  constexpr int kRows = T::kTokens < 32 ? T::kTokens : 32;
#pragma unroll
  for (int piece = 0; piece < T::kTokens / kRows; ++piece) {
    if (p.box_stores) {
      if constexpr (kRows == 32) {
        if (thread == 0) wait_stores_read_but_one();
        named_sync(barrier, 128);
        stage_box(half, sums + piece * 16, mine + piece % 2 * 4096);
        fence_shared_for_copies();
        named_sync(barrier, 128);
        if (thread == 0) {
          store_box(y, column, token + piece * 32, mine + piece % 2 * 4096);
          commit_stores();
        }
      }
    } else if (token + piece * kRows < p.m) {
      named_sync(barrier, 128);
      stage_and_finish<kRows>(p, sums + piece * (kRows / 2), column, token + piece * kRows, mine, barrier);
    }
  }
}

template <class T>
__device__ void consume(const WeightParams& p, const CUtensorMap& y, const WeightShared<T>& shared, int worker, int rank) {
  WeightConsumer<T> consumer(p, shared, rank);
  wait_for_earlier_kernels();
  unsigned use = 0;
  for (int tile = worker; tile < p.row_tiles * p.token_tiles; tile += p.workers, ++use) {
    const WeightPlace place = place_of<T>(p, tile);
    const int column = (place.row_chunk + consumer.row_group) * kChunkRows;
    const float* factor = p.factors + min(column, (p.row_chunks - 1) * kChunkRows) + consumer.warp * 16 + consumer.lane / 4;
    const float factors[2] = {__ldg(factor), __ldg(factor + 8)};
    float sums[T::kCount];
    consumer.multiply(sums);
    if (add_partials<T>(p, shared, consumer.row_group, consumer.depth_group, rank, use, sums))
      store_sums<T>(p, y, sums, factors, column, place.token, shared.stores, consumer.row_group);
  }
  if (threadIdx.x % 128 == 0) wait_stores_read();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    weight_product(const __grid_constant__ WeightParams p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
  extern __shared__ std::byte memory[];
  const WeightShared<T> shared(memory, p);
  const int rank = p.parts > 1 ? static_cast<int>(cluster_rank()) : 0, worker = static_cast<int>(blockIdx.x) / p.parts;
  if (threadIdx.x == 0) {
    prefetch_map(x);
    if (p.box_stores) prefetch_map(y);
    for (int slot = 0; slot < p.weight_slots; ++slot) {
      shared.weights_full[slot].init(T::kWarps ? 2 : 1);
      shared.weights_empty[slot].init(T::kGroups * 4);
    }
    for (int slot = 0; !T::kWarps && slot < p.token_slots; ++slot) {
      shared.tokens_full[slot].init(1);
      shared.tokens_empty[slot].init(T::kGroups * 4);
    }
    for (int group = 0; group < T::kRowGroups; ++group) {
      shared.partials_full[group].init(1);
      shared.partials_read[group].init(4);
    }
    fence_barriers();
  }
  __syncthreads();
  if (p.parts > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<T::kProducerRegisters>();
    if (threadIdx.x == T::kConsumerThreads) produce_weights<T>(p, shared, worker, rank);
    if (threadIdx.x == T::kConsumerThreads + 32) produce_tokens<T>(p, x, shared, worker, rank);
  } else {
    take_registers<T::kConsumerRegisters>();
    consume<T>(p, y, shared, worker, rank);
  }
  if (p.parts > 1) cluster_sync();  // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
