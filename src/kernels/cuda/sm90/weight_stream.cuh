#pragma once
/// The Hopper kernel of products with few tokens and prepared weights, y^T = W * x^T: the bytes of the weight are its bound.
///
/// Mapping:  the rows of the weight are dealt to the thread blocks in groups of 32 (or pairs of them), evenly, and nobody shares a row. A
///           thread block goes through tiles of `wide` of its groups: 1, 2, 4 or 8. Its eight warps take these by 8 / wide chunks along k:
///           32 rows x 128 columns each of a unit, which fills one slot of shared memory together with its columns of x. They decode,
///           multiply by mma, and add up in shared memory at the end of a tile. A ninth warp copies.
/// Overlap:  a thread block may take half a multiprocessor, so that the next kernel's thread blocks come while this one's work, and fill
///           their slots with weights before they wait for it: only prepare_weight writes weights, and lets no kernel start early.
/// Requires: compute capability 9.0; rows of x 16-byte aligned.

#include "kernels/cuda/sm90/weight_epilogue.cuh"

namespace narrow::cuda::sm90 {

/// What is known when a kernel is compiled.
template <class Decoder_, bool kBf16_, int kTokens_, bool kSplits_ = false>
struct StreamTile {
  using Decode = Decoder_;
  static constexpr bool kBf16 = kBf16_;
  static constexpr bool kSplits = kSplits_;  ///< tiles are split along k (weight_split.cuh), of common schemes (weight_launch.cu)
  static constexpr int kTokens = kTokens_, kBits = Decode::kBits;
  static constexpr int kWarps = 8, kThreads = (kWarps + 1) * 32;
  static constexpr int kBlocksAtOnce = kTokens <= 16 ? 2 : 1;  ///< of a multiprocessor
  static constexpr int kCount = kTokens / 2;                   ///< accumulators of a thread for 16 rows
  static constexpr int kQuads = kTokens / 4;                   ///< its sums of 32 rows, in float4
};

constexpr int kMostStreamSlots = 12, kGroupRows = 32;

/// Bytes of a slot's columns of x: 2 * 8 / wide planes of 64 columns.
NARROW_HOST_DEVICE constexpr int stream_token_bytes(int wide, int box_rows) { return (16 / wide * box_rows * 128 + 1023) / 1024 * 1024; }
/// Bytes of shared memory, the alignment to 1024 included.
NARROW_HOST_DEVICE constexpr int stream_shared_bytes(int slots, int wide, int box_rows, int tokens, int chunk_bytes) {
  return 2048 + slots * (stream_token_bytes(wide, box_rows) + 4 * chunk_bytes) + (8 - wide) * tokens * 128;
}

struct StreamShared {
  std::byte *zeros, *tokens, *weights;
  float4* partials;
  Barrier *full, *empty;

  __device__ StreamShared(std::byte* memory, const WeightParams& p) {
    zeros = memory + (1024 - shared_address(memory) % 1024) % 1024;
    full = reinterpret_cast<Barrier*>(zeros + 128);
    empty = full + kMostStreamSlots;
    tokens = zeros + 1024;
    weights = tokens + p.weight_slots * p.token_bytes;
    partials = reinterpret_cast<float4*>(weights + p.weight_slots * p.slot_bytes);
  }
};

/// Copies units into slots one after the other, by the lanes of one warp. Weights and tokens of a slot complete on one barrier, which
/// expects them with the weights. In a slot lie rows of chunks, each with the unit's chunks along k; or, of tiles of one group, halves of
/// chunks.
template <class T>
class StreamCopies {
 public:
  __device__ StreamCopies(const WeightParams& params, const CUtensorMap& map, const StreamShared& memory, int first_group, int groups)
      : p(params), x(map), shared(memory), lane(static_cast<int>(threadIdx.x) % 32), group(first_group), end(first_group + groups) {
    begin_tile();
  }
  __device__ bool done() const { return group >= end; }
  __device__ void advance() {
    chunk += p.depth;
    from += p.depth * p.chunk_bytes;
    if (chunk < p.depth_chunks) return;
    if (++token_tile == p.token_tiles) token_tile = 0, group += p.wide;
    begin_tile();
  }
  __device__ void copy_weights(int slot) const {
    const int chunks = min(p.depth, p.depth_chunks - chunk), runs = min(p.wide, end - group);
    Barrier& full = shared.full[slot];
    if (lane == 0) full.arrive_expecting(static_cast<std::uint32_t>(chunks * runs * (p.chunk_bytes / 2) + 2 * p.depth * p.box_rows * 128));
    __syncwarp();
    std::byte* to = shared.weights + slot * p.slot_bytes;
    if (p.wide > 1) {
      if (2 * lane < runs) copy(to + lane * p.depth * p.chunk_bytes, from, chunks * p.chunk_bytes, full);
    } else if (lane % 8 < chunks && part_bytes > 0) {
      copy(to + lane % 8 * (p.chunk_bytes / 2) + part_offset, from, part_bytes, full);
    }
  }
  __device__ void copy_tokens(int slot) const {
    if (lane == 0) copy_box_3d(shared.tokens + slot * p.token_bytes, x, 0, token_tile * T::kTokens, 2 * chunk, shared.full[slot]);
  }

 private:
  /// A lane copies row `lane` of chunks; of tiles of one group, codes (0), scales (1) or zero points (2) of chunk lane % 8.
  __device__ void begin_tile() {
    chunk = 0;
    const std::int64_t row_bytes = std::int64_t{p.depth_chunks} * p.chunk_bytes;
    from = p.chunks + (group / 2 + (p.wide > 1 ? lane : 0)) * row_bytes;
    if (p.wide > 1) return;
    const int part = lane / 8, zero_end = p.zero_offset != 0 ? p.zero_offset : p.chunk_bytes;
    const int begin = part == 0 ? 0 : (part == 1 ? p.scale_offset : zero_end);
    const int stop = part == 0 ? p.scale_offset : (part == 1 ? zero_end : (part == 2 ? p.chunk_bytes : zero_end));
    part_offset = begin / 2;
    part_bytes = (stop - begin) / 2;
    from += lane % 8 * p.chunk_bytes + begin + group % 2 * part_bytes;
  }
  __device__ void copy(std::byte* to, const std::uint8_t* source, int bytes, Barrier& full) const {
    if (p.token_tiles == 1)
      copy_bulk_once(to, source, static_cast<std::uint32_t>(bytes), full);
    else
      copy_bulk(to, source, static_cast<std::uint32_t>(bytes), full);
  }

  const WeightParams& p;
  const CUtensorMap& x;
  const StreamShared& shared;
  int lane, group, end, token_tile = 0, chunk = 0;  ///< chunk: the unit's first along k
  int part_offset = 0, part_bytes = 0;
  const std::uint8_t* from = nullptr;
};

/// One of the eight warps that decode and multiply.
template <class T>
class StreamConsumer {
 public:
  __device__ StreamConsumer(const WeightParams& params, const StreamShared& memory, int warp)
      : p(params),
        shared(memory),
        lane(static_cast<int>(threadIdx.x) % 32),
        row_warp(warp & (p.wide - 1)),
        depth_warp(warp >> p.wide_shift) {
    // Row l % 8 of matrix l / 8: 8 tokens x 8 columns each, two along the columns and two along tokens, or, of 8 tokens, four along the
    // columns, which are two steps. 16-byte pieces are swizzled by the 128-byte line they lie in.
    const int token = kEight ? lane % 8 : lane / 16 * 8 + lane % 8, piece = kEight ? lane / 8 : lane / 8 % 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int line = (2 * depth_warp + half) * p.box_rows + token + block * 16;
        const bool real = token + block * 16 < p.box_rows;
        first_token[block][half] = shared_address(real ? shared.tokens + line * 128 + (piece ^ (line & 7)) * 16 : shared.zeros);
        token_step[block] = real ? static_cast<std::uint32_t>(p.token_bytes) : 0u;
      }
    if (p.wide == 1) {
      codes = shared.weights + depth_warp * (p.chunk_bytes / 2);
      scales_from_codes = p.scale_offset / 2;
      zeros_from_codes = p.zero_offset / 2;
    } else {
      const int half = row_warp % 2, scale_end = p.zero_offset != 0 ? p.zero_offset : p.chunk_bytes;
      codes = shared.weights + (row_warp / 2 * p.depth + depth_warp) * p.chunk_bytes + half * (p.scale_offset / 2);
      scales_from_codes = p.scale_offset + half * ((scale_end - p.scale_offset) / 2 - p.scale_offset / 2);
      zeros_from_codes = p.zero_offset + half * ((p.chunk_bytes - p.zero_offset) / 2 - p.scale_offset / 2);
    }
  }

  /// Adds the products of a tile's units to the sums; this warp has a chunk in the first `mine` of them.
  __device__ void multiply(float (&sums)[2][T::kCount], int units, int mine) {
    const bool plain = !kInteger || (p.zero_offset == 0 && (!kCentred || p.integer_offset == 128));
    if (p.scale == ChunkScale::kNone && plain)
      multiply_units<0, Reads::kScales>(sums, units, mine);
    else if (p.step == 128 && plain && (!kInteger || p.scale == ChunkScale::kFloat))
      multiply_units<8, kInteger ? Reads::kFloats : Reads::kScales>(sums, units, mine);
    else if (p.scale == ChunkScale::kBf16 && plain && p.step <= 32)
      p.step == 32 ? multiply_units<2, Reads::kPacked>(sums, units, mine) : multiply_units<1, Reads::kPacked>(sums, units, mine);
    else if constexpr (!T::kSplits || kInteger)
      multiply_rare(sums, units, mine);
  }

  const WeightParams& p;
  const StreamShared& shared;
  int lane, row_warp, depth_warp;

 private:
  static constexpr bool kEight = T::kTokens == 8, kInteger = T::Decode::kKind == WeightKind::kInteger;
  static constexpr bool kCentred = T::Decode::template kCentred<T::kBf16>;
  static constexpr int kBlocks = kEight ? 1 : T::kTokens / 16;  ///< of up to 16 tokens
  static constexpr bool kHalves = T::kBits % 8 == 0;            ///< words are loaded for 64 columns at a time
  static constexpr int kWords = kHalves ? T::kBits : 2 * T::kBits;
  /// What a loop reads besides codes: scales, fp32 scales of chunks, bf16 scales 64 columns at a time, or scales and zero points.
  enum class Reads : std::uint8_t { kScales, kFloats, kPacked, kZeros };

  __device__ void multiply_rare(float (&sums)[2][T::kCount], int units, int mine) {
    constexpr Reads kReads = kInteger ? Reads::kZeros : Reads::kScales;
    if constexpr (kInteger) {
      if (p.scale == ChunkScale::kNone) return multiply_units<0, kReads>(sums, units, mine);
      if (p.step == 128) return multiply_units<8, kReads>(sums, units, mine);
    }
    if (p.step == 64)
      multiply_units<4, kReads>(sums, units, mine);
    else if (p.step == 32)
      multiply_units<2, kReads>(sums, units, mine);
    else
      multiply_units<1, kReads>(sums, units, mine);
  }

  /// The words of both blocks of 16 rows.
  __device__ void load_words(const std::byte* mine, std::uint32_t (&words)[2][kWords], int half) const {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const std::byte* from = mine + block * (32 * 8 * T::kBits) + (kHalves ? half * kWords * 128 : 0);
#pragma unroll
      for (int unit = 0; unit < kWords / 4; ++unit)
        *reinterpret_cast<uint4*>(words[block] + unit * 4) = *reinterpret_cast<const uint4*>(from + (unit * 32 + lane) * 16);
      if constexpr (kWords % 4 == 2)
        *reinterpret_cast<uint2*>(words[block] + kWords - 2) = *reinterpret_cast<const uint2*>(from + kWords / 4 * 512 + lane * 8);
    }
  }
  /// The number of the scale of row lane / 4 + 8 * i of this warp's 32 and of the 16 columns of a step among those of its half of a chunk.
  template <int kBlock>
  __device__ int scale_index(int i, int step) const {
    return kBlock == 0 ? lane / 4 + 8 * i : (lane / 4 + 8 * i) * (8 / std::max(1, kBlock)) + step / std::max(1, kBlock);
  }
  template <int kBlock>
  __device__ void load_zeros(const std::byte* mine, int step, DecodeState (&state)[2]) const {
    if constexpr (kInteger) {
      if (p.zero_offset == 0) return;
      const auto* zeros = reinterpret_cast<const std::uint8_t*>(mine) + zeros_from_codes;
#pragma unroll
      for (int i = 0; i < 4; ++i) T::Decode::template set_zero<T::kBf16>(state[i / 2], i % 2, zeros[scale_index<kBlock>(i, step)]);
    }
  }
  template <int kBlock>
  __device__ void load_scales(const std::byte* mine, int step, float (&scales)[4]) const {
    const std::byte* stored = mine + scales_from_codes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = scale_index<kBlock>(i, step);
      if (p.scale == ChunkScale::kFloat)
        scales[i] = reinterpret_cast<const float*>(stored)[at];
      else
        scales[i] = __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(stored)[at]) << 16);
    }
  }
  /// The bf16 scales of 64 columns from `step` on, one every kBlock steps, two in a word.
  template <int kBlock>
  __device__ void load_packed_scales(const std::byte* mine, int step, std::uint32_t (&packed)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* stored = reinterpret_cast<const std::uint16_t*>(mine + scales_from_codes) + scale_index<kBlock>(i, step);
      if constexpr (kBlock == 1) {
        const uint2 four = *reinterpret_cast<const uint2*>(stored);
        packed[i][0] = four.x, packed[i][1] = four.y;
      } else {
        packed[i][0] = *reinterpret_cast<const std::uint32_t*>(stored);
      }
    }
  }

  /// Scales change every kBlock steps of 16 columns, where the accumulators are promoted; 0: never.
  template <int kBlock, Reads kReads>
  __device__ void multiply_units(float (&sums)[2][T::kCount], int units, int mine) {
    DecodeState state[2];  // of both blocks of 16 rows; the same without zero points
#pragma unroll
    for (DecodeState& one : state) {
      one.shift = p.shift;
      one.magnitude = p.magnitude;
      asm("mov.b32 %0, %1;" : "=r"(one.magic) : "r"(T::kBf16 ? 0x43004300u : 0x64006400u));
      if constexpr (kInteger)
#pragma unroll
        for (int row = 0; row < 2; ++row) T::Decode::template set_zero<T::kBf16>(one, row, p.integer_offset);
    }
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      shared.full[ring.slot].wait(ring.parity);
      if (unit < mine) multiply_chunk<kBlock, kReads>(sums, ring.slot, state);
      __syncwarp();
      if (T::kSplits ? is_elected() : lane == 0) shared.empty[ring.slot].arrive();
      ring.advance(p.weight_slots);
    }
  }
  template <int kBlock, Reads kReads>
  __device__ void multiply_chunk(float (&sums)[2][T::kCount], int slot, DecodeState (&state)[2]) const {
    constexpr bool kScaled = kBlock > 0, kPacked = kReads == Reads::kPacked;
    constexpr int kSteps = kScaled ? kBlock : 8;
    std::uint32_t words[2][kWords], b[4];
    float promoted[2][kScaled ? T::kCount : 1], scales[4];
    [[maybe_unused]] std::uint32_t packed[4][2];
    const std::byte* mine = codes + slot * p.slot_bytes;
    if constexpr (!kHalves) load_words(mine, words, 0);
    if constexpr (kReads == Reads::kZeros) load_zeros<kBlock>(mine, 0, state);
    const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {  // 16 columns
      constexpr int kHalf = kStep / 4;
      if constexpr (kHalves && kStep % 4 == 0) load_words(mine, words, kHalf);
      if constexpr (kPacked && kStep % 4 == 0) load_packed_scales<kBlock>(mine, kStep, packed);
      if constexpr (kScaled && kStep % kSteps == 0) {
        if constexpr (kPacked) {
          constexpr int kAt = kStep % 4 / kSteps;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            scales[i] = __uint_as_float(kAt % 2 == 0 ? packed[i][kAt / 2] << 16 : packed[i][kAt / 2] & 0xFFFF0000u);
        } else if constexpr (kReads == Reads::kFloats) {
          const auto* stored = reinterpret_cast<const float*>(mine + scales_from_codes) + lane / 4;
#pragma unroll
          for (int i = 0; i < 4; ++i) scales[i] = stored[8 * i];
        } else {
          load_scales<kBlock>(mine, kStep, scales);
          if constexpr (kReads == Reads::kZeros && kStep > 0) load_zeros<kBlock>(mine, kStep, state);
        }
#pragma unroll
        for (int i = 0; i < T::kCount; ++i) promoted[0][i] = promoted[1][i] = 0.0f;
      }
      std::uint32_t a[2][4];
      float* into[2] = {kScaled ? promoted[0] : sums[0], kScaled ? promoted[1] : sums[1]};
#pragma unroll
      for (int rows = 0; rows < 2; ++rows)
        T::Decode::template decode_step<T::kBf16, kStep % 4>(words[rows] + (kHalves ? 0 : kHalf * T::kBits), state[rows], a[rows]);
      if constexpr (kCentred && kReads == Reads::kZeros)
#pragma unroll
        for (int rows = 0; rows < 2; ++rows) T::Decode::take_off(state[rows], a[rows]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const std::uint32_t from = (first_token[block][kHalf] + static_cast<std::uint32_t>(slot) * token_step[block]) ^ (kStep % 4 * 32);
        if constexpr (!kEight || kStep % 2 == 0) load_matrices(from, b);
        constexpr int kFirst = kEight ? kStep % 2 * 2 : 0;
#pragma unroll
        for (int rows = 0; rows < 2; ++rows) {
          mma_16x8<T::kBf16>(into[rows] + block * 8, a[rows], b[kFirst], b[kFirst + 1]);
          if constexpr (!kEight) mma_16x8<T::kBf16>(into[rows] + block * 8 + 4, a[rows], b[2], b[3]);
        }
      }
      if constexpr (kScaled && (kStep + 1) % kSteps == 0)
#pragma unroll
        for (int rows = 0; rows < 2; ++rows)
#pragma unroll
          for (int i = 0; i < T::kCount; ++i) sums[rows][i] = __fmaf_rn(promoted[rows][i], scales[rows * 2 + i / 2 % 2], sums[rows][i]);
    };
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) { (step(std::integral_constant<int, kStep>{}), ...); }
    (std::make_integer_sequence<int, 8>{});
  }

  RingPlace ring;
  const std::byte* codes = nullptr;  ///< in the first slot
  int scales_from_codes = 0, zeros_from_codes = 0;
  std::uint32_t first_token[kBlocks][2], token_step[kBlocks];
};

/// Asked for at this place, not where it is first used: what the compiler moves behind a loop comes late.
__device__ inline void load_here(float& value, const float* from) { asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from)); }
__device__ inline void add(float4& to, const float4& more) { to.x += more.x, to.y += more.y, to.z += more.z, to.w += more.w; }

/// Tokens {0, 1} of columns {0, 8}, from (row, column) of y on, through any epilogue. What it reads is asked for before any of it is used.
__device__ inline void finish_quad(const WeightParams& p, float4 quad, int row, int column) {
  const WeightEpilogue& e = p.epilogue;
  const float values[4] = {quad.x, quad.y, quad.z, quad.w};
  float bias[4], multiplier[4], residual[4];
  bool real[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i % 2, c = column + i / 2 * 8;
    const std::int64_t at = std::int64_t{r} * p.n + c;
    real[i] = r < p.m && c < p.n;
    if (real[i] && e.bias != nullptr) bias[i] = __ldg(e.bias + c);
    if (real[i] && e.multiplier != nullptr) multiplier[i] = load_value(e.multiplier, e.multiplier_type, at);
    if (real[i] && e.residual != nullptr) residual[i] = load_value(e.residual, e.residual_type, at);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (real[i]) {
      const float v = finish(e, values[i], bias[i], multiplier[i], residual[i]);
      store_finished(e, v, (row + i % 2) * p.y_pitch + column + i / 2 * 8, p.y);
    }
}

/// Finishes and stores a warp's sums: 32 columns of y from `column` on, kTokens rows from `token` on. `owned`: of split tiles, bits of the
/// quads that this thread block has.
template <class T>
__device__ void store_stream(const WeightParams& p, float4 (&values)[T::kQuads], const float (&factors)[4], int column, int token,
                             [[maybe_unused]] unsigned owned = ~0u) {
  const int lane = thread_here() % 32;
#pragma unroll
  for (int i = 0; i < T::kQuads; ++i) {
    const int rows = i / (T::kQuads / 2);
    values[i] = {values[i].x * factors[rows * 2], values[i].y * factors[rows * 2], values[i].z * factors[rows * 2 + 1],
                 values[i].w * factors[rows * 2 + 1]};
  }
  // Quad i has tokens 8 (i mod half) + {0, 1} of columns {0, 8} of its 16.
  const auto row_of = [&](int i) { return token + i % (T::kQuads / 2) * 8 + lane % 4 * 2; };
  const auto column_of = [&](int i) { return column + i / (T::kQuads / 2) * 16 + lane / 4; };
  if (p.plain_stores) {
    const bool half = p.epilogue.out == DType::kF16;
    auto* to = static_cast<std::uint16_t*>(p.y);
#pragma unroll
    for (int i = 0; i < T::kQuads; ++i)
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (T::kSplits && (owned >> i & 1u) == 0) continue;
        const int row = row_of(i), at = column_of(i) + second * 8;
        const std::uint32_t pair = second == 0 ? pack_pair(half, values[i].x, values[i].y) : pack_pair(half, values[i].z, values[i].w);
        if (at < p.n && row < p.m) to[row * p.y_pitch + at] = static_cast<std::uint16_t>(pair);
        if (at < p.n && row + 1 < p.m) to[(row + 1) * p.y_pitch + at] = static_cast<std::uint16_t>(pair >> 16);
      }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < T::kQuads; ++i) {  // small code: quad after quad moves to one place
    if (!T::kSplits || (owned >> i & 1u) != 0) finish_quad(p, values[0], row_of(i), column_of(i));
#pragma unroll
    for (int j = 0; j + 1 < T::kQuads; ++j) values[j] = values[j + 1];
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksAtOnce)
    weight_stream(const __grid_constant__ WeightParams p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap) {
  extern __shared__ std::byte memory[];
  const StreamShared shared(memory, p);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), worker = static_cast<int>(blockIdx.x);
  const int first_group = (worker * p.grains + min(worker, p.more_grains)) * p.grain;
  const int groups = (p.grains + (worker < p.more_grains ? 1 : 0)) * p.grain;
  if (warp == T::kWarps) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int slot = 0; slot < p.weight_slots; ++slot) {
        shared.full[slot].init(1);
        shared.empty[slot].init(T::kWarps);
      }
      fence_barriers();
      prefetch_map(x);
    }
    __syncwarp();
    StreamCopies<T> next(p, x, shared, first_group, groups), first = next;
    RingPlace at;
#pragma unroll 1
    for (; at.slot < p.weight_slots && !next.done(); ++at.slot, next.advance()) next.copy_weights(at.slot);
    __syncthreads();
    wait_for_earlier_kernels();
#pragma unroll 1
    for (int slot = 0; slot < at.slot; ++slot, first.advance()) first.copy_tokens(slot);
    let_next_kernel_start();
    at = {};
#pragma unroll 1
    for (; !next.done(); next.advance(), at.advance(p.weight_slots)) {
      shared.empty[at.slot].wait(at.parity);
      next.copy_weights(at.slot);
      next.copy_tokens(at.slot);
    }
    return;
  }

  if (threadIdx.x < 8) reinterpret_cast<uint4*>(shared.zeros)[threadIdx.x] = uint4{0, 0, 0, 0};
  StreamConsumer<T> consumer(p, shared, warp);
  const int lane = consumer.lane, row_warp = consumer.row_warp, depth_warp = consumer.depth_warp;
  const int depth_shift = 3 - p.wide_shift, units = (p.depth_chunks + p.depth - 1) >> depth_shift;
  const int mine = (p.depth_chunks - depth_warp + p.depth - 1) >> depth_shift;
  __syncthreads();
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int group = first_group; group < first_group + groups; group += p.wide)
#pragma unroll 1
    for (int token = 0; token < p.m; token += T::kTokens) {
      const bool busy = group + row_warp < first_group + groups;
      const int column = (group + row_warp) * kGroupRows;
      const float* factor = p.factors + (busy ? column : 0) + lane / 4;
      float factors[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_here(factors[i], factor + 8 * i);
      float sums[2][T::kCount];
#pragma unroll
      for (int i = 0; i < T::kCount; ++i) sums[0][i] = sums[1][i] = 0.0f;
      consumer.multiply(sums, units, busy ? mine : 0);

      float4 values[T::kQuads];
#pragma unroll
      for (int i = 0; i < T::kQuads; ++i) {
        const float* four = sums[i / (T::kQuads / 2)] + i % (T::kQuads / 2) * 4;
        values[i] = {four[0], four[1], four[2], four[3]};
      }
      if (p.depth > 1) {  // [depth - 1][row warp][quad][lane]
        float4* partials = shared.partials + row_warp * T::kQuads * 32 + lane;
        const int step = p.wide * T::kQuads * 32;
        if (depth_warp > 0)
#pragma unroll
          for (int i = 0; i < T::kQuads; ++i) partials[(depth_warp - 1) * step + i * 32] = values[i];
        named_sync(1, T::kWarps * 32);
        if (depth_warp == 0)
#pragma unroll 1
          for (int from = 1; from < p.depth; ++from, partials += step)
#pragma unroll
            for (int i = 0; i < T::kQuads; ++i) add(values[i], partials[i * 32]);
        named_sync(1, T::kWarps * 32);
      }
      if (busy && depth_warp == 0) store_stream<T>(p, values, factors, column, token);
    }
}

}  // namespace narrow::cuda::sm90
