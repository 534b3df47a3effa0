#pragma once
/// The Hopper main loop of products with prepared weights, y^T = W * x^T: one kernel for all formats, scales and numbers of rows of x.
///
/// Mapping:  persistent thread blocks. One warp copies chunks of packed weights, one copies boxes of x, both into rings of shared memory.
///           Consumer warpgroups decode 64 rows of the weight into wgmma's register operand and multiply them with the tokens in shared
///           memory. A tile has kRowGroups * 64 rows and kTokens tokens. kDepthGroups warpgroups, and the thread blocks of a cluster, take
///           turns along k and send their sums to the first one's shared memory, where they are added in one order.
/// Scales:   those of a row multiply its sum at the end. Those that change along k multiply the accumulators of their columns in fp32:
///           sum = fma(accumulator, scale, sum), every 128 columns (or less).
/// Requires: compute capability 9.0; rows of x 16-byte aligned (ops/cuda_weights.cc sees to it).
/// Bound:    the bytes of the weight up to about 100 tokens, then the tensor cores. Meaning: reference/matmul.cc within the contract's bound.

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
  bool box_stores;     ///< y is stored in boxes of 64 columns x 32 rows
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
  static constexpr int kCount = kTokens / 2;            ///< accumulators of a thread
  static constexpr bool kWarps = kTokens <= 64;         ///< mma of single warps, else wgmma: it takes 40 cycles more than its products
  static constexpr bool kRowScales = kTokens == 256;    ///< no second set of sums: scales along k are left to smaller tiles
  static constexpr int kTokenDepth = kRowScales ? 64 : kChunkDepth * kDepthGroups;  ///< columns of a slot of tokens
  static constexpr int kTokenBytes = kTokens * kTokenDepth * 2;
  static constexpr int kStoreBytes = kTokens >= 64 ? kRowGroups * 2 * 4096 : 0;  ///< two pieces of 32 tokens x 64 columns per warpgroup
  static constexpr int kPartialBytes = kTokens * 64 * 4;                         ///< a warpgroup's sums
  static constexpr int kEntryRegisters = kGroups == 4 ? 96 : 168;  ///< 65536 / threads, in steps of 8
  static constexpr int kProducerRegisters = kGroups == 4 ? 56 : 40;
  static constexpr int kConsumerRegisters = kGroups == 4 ? 104 : 232;
  static_assert(kConsumerRegisters * kConsumerThreads + kProducerRegisters * 128 <= kEntryRegisters * kThreads);
  static_assert(!kRowScales || kDepthGroups == 1);

  static constexpr int partial_slots(int parts) { return parts * kDepthGroups - 1; }
  static constexpr int shared_bytes(int weight_slots, int token_slots, int chunk_bytes, int parts) {
    return 1024 + token_slots * kTokenBytes + kStoreBytes + weight_slots * kGroups * chunk_bytes +
           partial_slots(parts) * kRowGroups * kPartialBytes + (2 * (weight_slots + token_slots) + 2 * kRowGroups) * 8;
  }
};

template <class T>
struct WeightShared {
  std::byte *tokens, *stores, *weights, *partials;
  Barrier *weights_full, *weights_empty, *tokens_full, *tokens_empty;
  Barrier *partials_full, *partials_read;  ///< one per row group; of the first thread block, and of each

  __device__ WeightShared(std::byte* memory, const WeightParams& p) {
    tokens = memory + (1024 - shared_address(memory) % 1024) % 1024;
    stores = tokens + p.token_slots * T::kTokenBytes;
    weights = stores + T::kStoreBytes;
    partials = weights + p.weight_slots * T::kGroups * p.chunk_bytes;
    weights_full = reinterpret_cast<Barrier*>(partials + T::partial_slots(p.parts) * T::kRowGroups * T::kPartialBytes);
    weights_empty = weights_full + p.weight_slots;
    tokens_full = weights_empty + p.weight_slots;
    tokens_empty = tokens_full + p.token_slots;
    partials_full = tokens_empty + p.token_slots;
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

/// One thread: a slot of weights has one chunk for each warpgroup, those of a row of chunks in one copy.
template <class T>
__device__ void produce_weights(const WeightParams& p, const WeightShared<T>& shared, int worker, int rank) {
  const DepthRange depth = depth_of(p, rank);
  const auto first_chunk = [&](const WeightPlace& place, int group) {
    const std::int64_t row = min(place.row_chunk + group, p.row_chunks - 1);
    return p.chunks + (row * p.depth_chunks + depth.begin) * p.chunk_bytes;
  };
  const int tiles = p.row_tiles * p.token_tiles;
  if (worker < tiles) {  // while earlier kernels still run
    const WeightPlace first = place_of<T>(p, worker);
    for (int group = 0; group < T::kRowGroups; ++group)
      for (int i = 0; i < min(depth.count, p.weight_slots * T::kDepthGroups); ++i)
        prefetch_bulk(first_chunk(first, group) + i * p.chunk_bytes, static_cast<std::uint32_t>(p.chunk_bytes));
  }
  wait_for_earlier_kernels();
  const int slot_bytes = T::kDepthGroups * p.chunk_bytes;
  RingPlace at;
  for (int tile = worker; tile < tiles; tile += p.workers) {
    const WeightPlace place = place_of<T>(p, tile);
    const std::uint8_t* from[T::kRowGroups];
#pragma unroll
    for (int group = 0; group < T::kRowGroups; ++group) from[group] = first_chunk(place, group);
    for (int left = depth.count; left > 0; left -= T::kDepthGroups, at.advance(p.weight_slots)) {
      const std::uint32_t bytes = static_cast<std::uint32_t>(min(left, T::kDepthGroups) * p.chunk_bytes);
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
  wait_for_earlier_kernels();
  RingPlace at;
  for (int tile = worker; tile < p.row_tiles * p.token_tiles; tile += p.workers) {
    const WeightPlace place = place_of<T>(p, tile);
    for (int plane = 2 * depth.begin; plane < 2 * (depth.begin + depth.count); plane += T::kTokenDepth / 64, at.advance(p.token_slots)) {
      shared.tokens_empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.tokens_full[at.slot];
      full.arrive_expecting(T::kTokenBytes);
      copy_box_3d(shared.tokens + at.slot * T::kTokenBytes, x, 0, place.token, plane, full);
    }
  }
}

/// The value of a scale stored in a chunk.
__device__ inline float chunk_scale(ChunkScale kind, const std::byte* scales, int i) {
  if (kind == ChunkScale::kFloat) return reinterpret_cast<const float*>(scales)[i];
  const std::uint32_t code = reinterpret_cast<const std::uint8_t*>(scales)[i];
  if (kind == ChunkScale::kE8m0) return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
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
    first_token_word = operand_word(shared_address(shared.tokens) + depth_group * 2 * T::kTokens * 128);
    state.shift = p.shift;
    state.magnitude = p.magnitude;
    if constexpr (T::Decode::kKind == WeightKind::kInteger)
#pragma unroll
      for (int i = 0; i < 8; ++i) state.zero[i / 2][i % 2] = T::Decode::template zero_word<T::kBf16>(p.integer_offset);
    asm volatile("mov.b32 %0, %1;" : "=r"(state.magic) : "r"(T::kBf16 ? 0x43004300u : 0x64006400u));
  }

  /// The sums of one tile along this warpgroup's share of k.
  __device__ void multiply(float (&sums)[T::kCount]) {
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;
    const int slots = (chunks + T::kDepthGroups - 1) / T::kDepthGroups, mine = (chunks - depth_group + T::kDepthGroups - 1) / T::kDepthGroups;
    if (mine > 0) {
      if constexpr (T::kWarps) {
        if (p.step >= kChunkDepth) multiply_warps<false>(sums, mine);
        else multiply_warps<true>(sums, mine);
      } else if constexpr (T::kRowScales) {
        multiply_rows(sums, mine);
      } else {
        if (p.step >= kChunkDepth) multiply_chunks(sums, mine);
        else multiply_blocks(sums, mine);
      }
    }
    if (mine < slots) {  // the last slot has nothing for this warpgroup
      shared.weights_full[weights.slot].wait(weights.parity);
      shared.tokens_full[tokens.slot].wait(tokens.parity);
      release_weights();
      release_tokens();
    }
  }

  const WeightParams& p;
  const WeightShared<T>& shared;
  int lane, warp, row_group, depth_group, chunks;

 private:
  static constexpr int kWords = T::kBits <= 8 ? 2 * T::kBits : 16;  ///< dense weights are loaded by halves

  __device__ const std::byte* chunk_of(int slot) const {
    return shared.weights + ((slot * T::kRowGroups + row_group) * T::kDepthGroups + depth_group) * p.chunk_bytes; }

  __device__ void load_words(const std::byte* chunk, std::uint32_t (&words)[kWords], int half) const {
    if constexpr (T::kBits > 8) chunk += half * 4 * 32 * 16;  // four units
    const std::byte* mine = chunk + warp * (32 * 8 * T::kBits);
#pragma unroll
    for (int unit = 0; unit < kWords / 4; ++unit)
      *reinterpret_cast<uint4*>(words + unit * 4) = *reinterpret_cast<const uint4*>(mine + (unit * 32 + lane) * 16);
    if constexpr (kWords % 4 == 2)
      *reinterpret_cast<uint2*>(words + kWords - 2) = *reinterpret_cast<const uint2*>(mine + kWords / 4 * 512 + lane * 8);
  }
  __device__ void decode(const std::byte* chunk, std::uint32_t (&words)[kWords], int half, std::uint32_t (&a)[kPairs]) const {
    if constexpr (T::kBits > 8) {
      load_words(chunk, words, half);
      T::Decode::template decode<T::kBf16>(words, state, a);
    } else {
      T::Decode::template decode<T::kBf16>(words + half * T::kBits, state, a);
    }
  }
  /// Zero points of the 64 columns of one half of a chunk.
  __device__ void load_zeros(const std::byte* chunk, int half) {
    if constexpr (T::Decode::kKind == WeightKind::kInteger) {
      if (p.zero_offset == 0) return;
      const auto* zeros = reinterpret_cast<const std::uint8_t*>(chunk) + p.zero_offset + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int block = (half * 64 + i / 2 * 16) >> p.step_shift;
        state.zero[i / 2][i % 2] = T::Decode::template zero_word<T::kBf16>(zeros[block * kChunkRows + i % 2 * 8]);
      }
    }
  }
  __device__ void load_scales(const std::byte* chunk, int block, float (&scales)[2]) const {
    scales[0] = scales[1] = 1.0f;
    if (p.scale == ChunkScale::kNone) return;
    const int row = block * kChunkRows + warp * 16 + lane / 4;
    scales[0] = chunk_scale(p.scale, chunk + p.scale_offset, row);
    scales[1] = chunk_scale(p.scale, chunk + p.scale_offset, row + 8);
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
  /// The descriptor of the first 16 columns of a half of a slot of tokens; 2 more for the next 16.
  __device__ std::uint32_t token_word(int slot, int half) const {
    const int bytes = slot * T::kTokenBytes + (T::kRowScales ? 0 : half * T::kTokens * 128);
    return __shfl_sync(0xFFFFFFFFu, first_token_word + static_cast<std::uint32_t>(bytes / 16), 0);
  }
  __device__ static void promote(float (&sums)[T::kCount], float (&accumulators)[T::kCount], const float (&scales)[2]) {
    pin(accumulators);
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) sums[i] = __fmaf_rn(accumulators[i], scales[i / 2 % 2], sums[i]);
  }

  /// No scales along k: products add to the sums themselves. Decoding runs while the products before it do.
  __device__ void multiply_rows(float (&sums)[T::kCount], int left) {
    std::uint32_t words[kWords], a[2][kPairs];
    RingPlace before = tokens;
    bool lent = false;  // the slot `before` is still read by products
    for (; left > 0; --left) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_zeros(chunk, half);
        decode(chunk, words, half, a[half]);
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
    release(shared.tokens_empty[before.slot]);
  }

  /// One scale per chunk: its accumulators are promoted while the next chunk is decoded.
  __device__ void multiply_chunks(float (&sums)[T::kCount], int left) {
    std::uint32_t words[kWords], a[2][kPairs];
    float accumulators[T::kCount], scales[2], next_scales[2];
    const auto load = [&](float(&its)[2]) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
      load_scales(chunk, 0, its);
      load_zeros(chunk, 0);
      decode(chunk, words, 0, a[0]);
    };
    const auto issue = [&] {
      shared.tokens_full[tokens.slot].wait(tokens.parity);
      const std::uint32_t b = token_word(tokens.slot, 0), b1 = token_word(tokens.slot, 1);
      pin(accumulators);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(accumulators, a[0] + step * 4, operand(b + step * 2), step > 0);
      wgmma_commit();
      decode(chunk_of(weights.slot), words, 1, a[1]);
      release_weights();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_registers<T::kBf16>(accumulators, a[1] + step * 4, operand(b1 + step * 2), true);
      wgmma_commit();
    };
    load(scales);
    issue();
    for (--left; left > 0; --left) {
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

  /// Few tokens: products of single warps, which wait for nothing. The accumulators are promoted wherever the scale changes; kFine: inside
  /// chunks too.
  template <bool kFine>
  __device__ void multiply_warps(float (&sums)[T::kCount], int left) {
    std::uint32_t words[kWords];
    float accumulators[T::kCount], scales[2];
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) accumulators[i] = 0.0f;
    // Row l % 8 of matrix l / 8 of a fragment: 8 tokens x 8 columns each, columns before tokens; 16-byte pieces are swizzled.
    const std::uint32_t row = static_cast<std::uint32_t>(lane / 16 * 8 + lane % 8);
    const std::uint32_t first = shared_address(shared.tokens) + depth_group * 2 * T::kTokens * 128 + row * 128 + static_cast<std::uint32_t>((lane / 8 % 2) ^ (lane % 8)) * 16;
    const bool scaled = p.scale != ChunkScale::kNone;
    for (; left > 0; --left) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
      if (scaled) load_scales(chunk, 0, scales);
      shared.tokens_full[tokens.slot].wait(tokens.parity);
      const std::uint32_t slot = first + static_cast<std::uint32_t>(tokens.slot * T::kTokenBytes);
      const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {  // 16 columns
        constexpr int kHalf = kStep / 4;
        if constexpr (kStep % 4 == 0) {
          load_zeros(chunk, kHalf);
          if constexpr (T::kBits > 8) load_words(chunk, words, kHalf);
        }
        std::uint32_t a[4];
        T::Decode::template decode_step<T::kBf16, kStep % 4>(words + (T::kBits <= 8 ? kHalf * T::kBits : 0), state, a);
#pragma unroll
        for (int block = 0; block < T::kTokens / 16; ++block) {
          std::uint32_t b[4];
          load_matrices((slot + kHalf * T::kTokens * 128 + block * 2048) ^ (kStep % 4 * 32), b);
          mma_16x8<T::kBf16>(accumulators + block * 8, a, b[0], b[1]);
          mma_16x8<T::kBf16>(accumulators + block * 8 + 4, a, b[2], b[3]);
        }
        if (kStep == 7 ? scaled : (kFine && ((kStep + 1) * 16 & (p.step - 1)) == 0)) {
#pragma unroll
          for (int i = 0; i < T::kCount; ++i) {
            sums[i] = __fmaf_rn(accumulators[i], scales[i / 2 % 2], sums[i]);
            accumulators[i] = 0.0f;
          }
          if constexpr (kStep < 7) load_scales(chunk, (kStep + 1) * 16 >> p.step_shift, scales);
        }
      };
      [&]<int... kStep>(std::integer_sequence<int, kStep...>) {
        (step(std::integral_constant<int, kStep>{}), ...);
      }(std::make_integer_sequence<int, 8>{});
      release_weights();
      release_tokens();
    }
    if (!scaled)
#pragma unroll
      for (int i = 0; i < T::kCount; ++i) sums[i] = accumulators[i];
  }

  /// The same on wgmma: 64, 32 or 16 columns at a time.
  __device__ void multiply_blocks(float (&sums)[T::kCount], int left) {
    std::uint32_t words[kWords], a[kPairs];
    float accumulators[T::kCount], scales[2];
    for (; left > 0; --left) {
      shared.weights_full[weights.slot].wait(weights.parity);
      const std::byte* chunk = chunk_of(weights.slot);
      if constexpr (T::kBits <= 8) load_words(chunk, words, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_zeros(chunk, half);
        decode(chunk, words, half, a);
        if (half == 0) shared.tokens_full[tokens.slot].wait(tokens.parity);
        const std::uint32_t b = token_word(tokens.slot, half);
        const auto multiply_steps = [&](int first, int count) {
          load_scales(chunk, (half * 64 + first * 16) >> p.step_shift, scales);
          pin(accumulators);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < count; ++step)
            wgmma_registers<T::kBf16>(accumulators, a + (first + step) * 4, operand(b + (first + step) * 2), step > 0);
          wgmma_commit();
          wgmma_wait<0>();
          promote(sums, accumulators, scales);
        };
        if (p.step == 64) {
          multiply_steps(0, 4);
        } else if (p.step == 32) {
          multiply_steps(0, 2);
          multiply_steps(2, 2);
        } else {
          multiply_steps(0, 1);
          multiply_steps(1, 1);
          multiply_steps(2, 1);
          multiply_steps(3, 1);
        }
      }
      release_weights();
      release_tokens();
    }
  }

  RingPlace weights, tokens;
  std::uint32_t first_token_word;
  DecodeState state;
};

/// Adds the sums of all warpgroups and thread blocks that share the tile. True in the warpgroup that has them all, the first.
template <class T>
__device__ bool add_partials(const WeightParams& p, const WeightShared<T>& shared, int row_group, int depth_group, int rank, unsigned use,
                             float (&sums)[T::kCount]) {
  const int partials = T::partial_slots(p.parts);
  if (partials == 0) return true;
  const int thread = thread_here() % 128, lane = thread % 32, index = rank * T::kDepthGroups + depth_group;
  const auto words_of = [&](int partial) {
    return reinterpret_cast<float4*>(shared.partials + (partial * T::kRowGroups + row_group) * T::kPartialBytes) + thread;
  };
  Barrier& full = shared.partials_full[row_group];
  Barrier& read = shared.partials_read[row_group];
  if (index > 0) {
    if (use > 0) read.wait(use - 1);
    float4* to = words_of(index - 1);
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i)
      send_remote(to + i * 128, {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}, full, 0);
    return false;
  }
  if (thread == 0) full.arrive_expecting(static_cast<std::uint32_t>(partials * T::kPartialBytes));
  full.wait(use);
  for (int partial = 0; partial < partials; ++partial) {
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

/// The same as fp32, and from there element by element through any epilogue.
__device__ inline void stage_and_finish(const WeightParams& p, const float* sums, int column, int token, std::byte* to, int barrier) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
  float* values = reinterpret_cast<float*>(to);  // [32][64], columns exchanged against bank conflicts
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = i / 4 * 8 + lane % 4 * 2 + i % 2, c = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    values[r * 64 + (c ^ (lane % 4 * 8))] = sums[i];
  }
  named_sync(barrier, 128);
#pragma unroll 1
  for (int i = thread; i < 32 * 64; i += 128) {
    const int r = i / 64, c = i % 64;
    if (token + r < p.m && column + c < p.n) 
      finish_and_store(p.epilogue, values[r * 64 + (c ^ (r / 2 % 4 * 8))], token + r, column + c, p.n, p.y, p.y_pitch);
  }
}

/// Finishes and stores the sums of a warpgroup: 64 columns of y from `column` on, kTokens rows from `token` on.
template <class T>
__device__ void store_sums(const WeightParams& p, const CUtensorMap& y, float (&sums)[T::kCount], int column, int token, std::byte* staging,
                           int row_group) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
  const int mine = column + warp * 16 + lane / 4, last = p.row_chunks * kChunkRows - 1;
  const float factors[2] = {__ldg(p.factors + min(mine, last)), __ldg(p.factors + min(mine + 8, last))};
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[i] *= factors[i / 2 % 2];

  if constexpr (T::kStoreBytes > 0) {
    const bool half = p.epilogue.out == DType::kF16;
    std::byte* mine_staged = staging + row_group * 2 * 4096;
#pragma unroll
    for (int piece = 0; piece < T::kTokens / 32; ++piece) {  // 32 tokens at a time
      if (p.box_stores) {
        if (thread == 0) wait_stores_read_but_one();
        named_sync(1 + row_group, 128);
        stage_box(half, sums + piece * 16, mine_staged + piece % 2 * 4096);
        fence_shared_for_copies();
        named_sync(1 + row_group, 128);
        if (thread == 0) {
          store_box(y, column, token + piece * 32, mine_staged + piece % 2 * 4096);
          commit_stores();
        }
      } else if (token + piece * 32 < p.m) {
        named_sync(1 + row_group, 128);
        stage_and_finish(p, sums + piece * 16, column, token + piece * 32, mine_staged, 1 + row_group);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) {
      const int row = token + i / 4 * 8 + lane % 4 * 2 + i % 2, c = mine + i / 2 % 2 * 8;
      if (row < p.m && c < p.n) finish_and_store(p.epilogue, sums[i], row, c, p.n, p.y, p.y_pitch);
    }
  }
}

template <class T>
__device__ void consume(const WeightParams& p, const CUtensorMap& y, const WeightShared<T>& shared, int worker, int rank) {
  wait_for_earlier_kernels();
  WeightConsumer<T> consumer(p, shared, rank);
  unsigned use = 0;
  for (int tile = worker; tile < p.row_tiles * p.token_tiles; tile += p.workers, ++use) {
    float sums[T::kCount];
    consumer.multiply(sums);
    if (!add_partials<T>(p, shared, consumer.row_group, consumer.depth_group, rank, use, sums)) continue;
    const WeightPlace place = place_of<T>(p, tile);
    store_sums<T>(p, y, sums, (place.row_chunk + consumer.row_group) * kChunkRows, place.token, shared.stores, consumer.row_group);
  }
  if (T::kStoreBytes > 0 && threadIdx.x % 128 == 0) wait_stores_read();
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
      shared.weights_full[slot].init(1);
      shared.weights_empty[slot].init(T::kGroups * 4);
    }
    for (int slot = 0; slot < p.token_slots; ++slot) {
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
