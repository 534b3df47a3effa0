#pragma once
/// The Hopper main loop of fp8 products, D = epilogue(A * B^T), one kernel for all scalings, groupings and tiles.
///
/// Mapping:  persistent thread blocks. One producer warp copies k blocks of 128 of A and B (and their scales) by TMA into a ring of
///           stages; two consumer warpgroups multiply them by wgmma, each its own part of the tile. In clusters of two the thread blocks
///           lie side by side and each loads half of the operand they share for both.
/// Scales:   wgmma sums 128 along k into fresh accumulators, which are then promoted, sum = fma(accumulator, factor, sum), into fp32
///           registers: factor = scale of A's row * scale of B's block. While one warpgroup promotes, the other's wgmma run.
/// Requires: compute capability 9.0; rows of A and B 16-byte aligned (checked in ops/cuda_matmul.cc).
/// Bound:    arithmetic beyond about 200 rows, else the bytes of B. Meaning: reference/matmul.cc within the bound of the numerics contract.

#include "kernels/cuda/sm90/fp8_epilogue.cuh"
#include "kernels/cuda/sm90/fp8_schedule.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace narrow::cuda::sm90 {

enum class Share : std::uint8_t { kNothing, kA, kB };  ///< what the two thread blocks of a cluster have in common

/// What is known when a kernel is compiled.
template <int kTileM_, int kTileN_, int kStages_, Share kShare_, Fp8Scaling kScaling_ = Fp8Scaling::kBlockTile, bool kInTurn_ = true,
          Fp8Pair kPair_ = Fp8Pair::kE4m3E4m3, bool kSwapped_ = false>
struct Fp8Tile {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_, kTileK = 128;
  static constexpr Share kShare = kShare_;
  static constexpr Fp8Scaling kScaling = kScaling_;
  static constexpr Fp8Pair kPair = kPair_;
  static constexpr bool kInTurn = kInTurn_;  ///< warpgroups issue their products in turn, so that promotion and product alternate
  static constexpr bool kSwapped = kSwapped_;  ///< few rows: the weights take wgmma's 64 rows, the rows of A its columns; D is stored transposed
  static constexpr int kCluster = kShare == Share::kNothing ? 1 : 2;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kGroupsM = kTileM >= 128 ? 2 : 1, kGroupsN = kConsumers / kGroupsM;  ///< warpgroups along m and n
  static constexpr int kGroupM = kTileM / kGroupsM, kGroupN = kTileN / kGroupsN;            ///< a warpgroup's part
  static constexpr int kStrips = kGroupM / 64;       ///< products of 64 rows that it computes one after the other
  static constexpr int kCount = kGroupN / 2;         ///< accumulators of a thread
  static constexpr int kBytesA = kTileM * kTileK, kBytesB = kTileN * kTileK;
  static constexpr bool kTileScales = kScaling == Fp8Scaling::kBlockTile;                              ///< scales of 128x128 tiles of the weights
  static constexpr bool kScalesOfA = kScaling != Fp8Scaling::kOuter && !(kTileScales && kSwapped);   ///< 1x128 scales of the left operand
  static constexpr bool kScalesOfB = kScaling == Fp8Scaling::kBlockBlock || (kTileScales && kSwapped);  ///< and of the right one
  static constexpr int kScaleBytesA = kScalesOfA ? kTileM * 4 : 0, kScaleBytesB = kScalesOfB ? (kTileN * 4 + 127) / 128 * 128 : 0;
  static constexpr int kTileScaleBytes = kTileScales ? 16 : 0;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kCopiedBytes = kStageBytes + kScaleBytesA + (kScalesOfB ? kTileN * 4 : 0);
  static constexpr int kBoxes = kSwapped ? 1 : kStrips * (kGroupN / 64);  ///< staging memory of a warp
  static constexpr int kStagingAll = kConsumers * 4 * kBoxes * kStagingBytes;
  static constexpr int kShared = 1024 + kStages * (kStageBytes + kScaleBytesA + kScaleBytesB + kTileScaleBytes) + kStagingAll + kStages * 2 * static_cast<int>(sizeof(Barrier));

  static_assert(kTileM % 64 == 0 && kGroupM % 64 == 0 && (kGroupN == 16 || kGroupN == 32 || kGroupN == 64 || kGroupN == 128 || kGroupN == 192));
  static_assert(!kSwapped || (kTileM == 128 && kShare == Share::kNothing));
  static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0 && kShared <= 232448);
};

struct Fp8Params {
  Fp8Schedule schedule;
  Fp8Output out;
  const float* b_scales;       ///< of kBlockTile
  int m, n, k_blocks;          ///< k_blocks: a row of b_scales
  std::int64_t d_group_rows;   ///< of kDepth: rows of D per group
  float* partials;             ///< contributions, one per thread block
  unsigned* flags;             ///< one per thread block: its contribution is there
};

/// The thread block's shared memory.
template <class T>
struct Fp8Shared {
  std::byte* tiles;
  float* scales_a;
  float* scales_b;
  float* scales_tile;
  std::byte* staging;
  Barrier* full;
  Barrier* empty;

  __device__ explicit Fp8Shared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    std::byte* scales = staging + T::kStagingAll;
    scales_a = reinterpret_cast<float*>(scales);
    scales_b = reinterpret_cast<float*>(scales + T::kStages * T::kScaleBytesA);
    scales_tile = reinterpret_cast<float*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB));
    full = reinterpret_cast<Barrier*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB + T::kTileScaleBytes));
    empty = full + T::kStages;
  }
  __device__ std::byte* a(int stage) const { return tiles + stage * T::kStageBytes; }
  __device__ std::byte* b(int stage) const { return tiles + stage * T::kStageBytes + T::kBytesA; }
  __device__ float* a_scales(int stage) const { return scales_a + stage * (T::kScaleBytesA / 4); }
  __device__ float* b_scales(int stage) const { return scales_b + stage * (T::kScaleBytesB / 4); }
  __device__ float* tile_scales(int stage) const { return scales_tile + stage * (T::kTileScaleBytes / 4); }
};

/// A place in the ring of stages.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1u;
  }
};

/// Where a thread block's part of a piece lies.
struct TilePlace {
  int row, column;   ///< inside the group
};

template <class T>
__device__ TilePlace place_of(const Fp8Params& p, const Fp8Piece& piece, int rank) {
  const int tiles_m = p.schedule.grouping == Fp8Grouping::kNone || p.schedule.grouping == Fp8Grouping::kDepth
                          ? p.schedule.tiles_m
                          : (piece.rows + p.schedule.tile_m - 1) / p.schedule.tile_m;
  const int2 place = place_of_tile(piece.tile, tiles_m, p.schedule.tiles_n, p.schedule.band);
  const int along_m = T::kShare == Share::kB ? 2 : 1, along_n = T::kShare == Share::kA ? 2 : 1;
  return {(place.x * along_m + (T::kShare == Share::kB ? rank : 0)) * T::kTileM, (place.y * along_n + (T::kShare == Share::kA ? rank : 0)) * T::kTileN};
}

/// The producer: one thread.
template <class T>
__device__ void produce(const Fp8Params& p, const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& sa, const CUtensorMap& sb,
                        const Fp8Shared<T>& shared, int worker, int rank) {
  if (p.schedule.grouping == Fp8Grouping::kNone) {  // weights into the second-level cache while earlier kernels still run
    Fp8Work work(p.schedule, p.m, worker);
    Fp8Piece piece{};
    if (work.next(piece)) {
      const TilePlace place = place_of<T>(p, piece, rank);
      for (int block = piece.k_begin; block < min(piece.k_begin + T::kStages, piece.k_end); ++block) {
        if constexpr (T::kSwapped) prefetch_box(a, block * 128, place.row);
        else prefetch_box(b, block * 128, place.column + (T::kShare == Share::kB ? rank * T::kTileN / 2 : 0));
      }
    }
  }
  wait_for_earlier_kernels();
  RingPosition<T::kStages> at;
  Fp8Work work(p.schedule, p.m, worker);
  Fp8Piece piece{};
  while (work.next(piece)) {
    const TilePlace place = place_of<T>(p, piece, rank);
    const bool by_rows = p.schedule.grouping == Fp8Grouping::kRowOffsets || p.schedule.grouping == Fp8Grouping::kRowCounts;
    const int row_a = piece.first_row + place.row, row_b = (by_rows ? piece.group * p.n : 0) + place.column;
    // Scales of B's 128x128 tiles: a tile touches one block of columns, or two.
    const int blocks = ((T::kSwapped ? p.m : p.n) + 127) / 128;
    const int first_block = min((T::kSwapped ? place.row : place.column) / 128, blocks - 1), second_block = min(first_block + 1, blocks - 1);
    const float* tile_scales = p.b_scales + static_cast<std::int64_t>(by_rows ? piece.group : 0) * blocks * p.k_blocks;
    const float* first_scale = tile_scales + static_cast<std::int64_t>(first_block) * p.k_blocks;
    const float* second_scale = tile_scales + static_cast<std::int64_t>(second_block) * p.k_blocks;
    for (int block = piece.k_begin; block < piece.k_end; ++block) {
      shared.empty[at.stage].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.stage];
      full.arrive_expecting(T::kCopiedBytes);
      if constexpr (T::kShare == Share::kA) {
        constexpr int kHalf = T::kTileM / 2;
        copy_box_multicast(shared.a(at.stage) + rank * kHalf * 128, a, block * 128, row_a + rank * kHalf, full, 3);
      } else {
        copy_box(shared.a(at.stage), a, block * 128, row_a, full);
      }
      if constexpr (T::kShare == Share::kB) {
        constexpr int kHalf = T::kTileN / 2;
        copy_box_multicast(shared.b(at.stage) + rank * kHalf * 128, b, block * 128, row_b + rank * kHalf, full, 3);
      } else {
        copy_box(shared.b(at.stage), b, block * 128, row_b, full);
      }
      if constexpr (T::kScalesOfA) copy_box(shared.a_scales(at.stage), sa, row_a, block, full);
      if constexpr (T::kScalesOfB) copy_box(shared.b_scales(at.stage), sb, row_b, block, full);
      if constexpr (T::kTileScales) {
        copy_word(shared.tile_scales(at.stage), first_scale + block);
        if constexpr (T::kTileN > 128) copy_word(shared.tile_scales(at.stage) + 1, second_scale + block);
        arrive_after_words(full);
      }
      at.advance();
    }
  }
}

/// Adds up and finishes this worker's share of a tile that was cut into parts: words [first, last) of every thread, all parts in order.
/// A word is four neighbouring sums of a thread: rows r and r + 8, two columns; word w of a thread has columns 8w and on of its strip.
template <class T>
__device__ void finish_share(const Fp8Params& p, const Fp8Piece& piece, const TilePlace& place, const float (&sums)[T::kStrips][T::kCount]) {
  constexpr int kWords = T::kStrips * T::kCount / 4, kPerStrip = T::kCount / 4;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread % 128 / 32, group = thread / 128, parts = p.schedule.parts;
  const std::int64_t first_block = static_cast<std::int64_t>(blockIdx.x) - piece.part;
  float4* partials = reinterpret_cast<float4*>(p.partials) + first_block * kWords * T::kConsumerThreads + thread;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const float* s = sums[i / kPerStrip] + i % kPerStrip * 4;
    __stcg(partials + (static_cast<std::int64_t>(piece.part) * kWords + i) * T::kConsumerThreads, make_float4(s[0], s[1], s[2], s[3]));
  }
  __threadfence();
  named_sync(3, T::kConsumerThreads);
  unsigned* flag = p.flags + first_block;
  if (thread == 0) {
    atomicAdd(flag, 1u);
    unsigned there = 0;
    while (there < static_cast<unsigned>(parts)) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag) : "memory");
  }
  named_sync(3, T::kConsumerThreads);
  const int group_m = T::kGroupsM == 2 ? group : 0, group_n = T::kGroupsN == 2 ? group : 0;
  for (int i = kWords * piece.part / parts; i < kWords * (piece.part + 1) / parts; ++i) {
    float4 word = __ldcg(partials + static_cast<std::int64_t>(i) * T::kConsumerThreads);
    for (int part = 1; part < parts; ++part) {
      const float4 more = __ldcg(partials + (static_cast<std::int64_t>(part) * kWords + i) * T::kConsumerThreads);
      word.x += more.x, word.y += more.y, word.z += more.z, word.w += more.w;
    }
    const int row = place.row + group_m * T::kGroupM + i / kPerStrip * 64 + warp * 16 + lane / 4;
    const int column = place.column + group_n * T::kGroupN + i % kPerStrip * 8 + lane % 4 * 2;
    store_word<T::kSwapped, T::kScaling == Fp8Scaling::kOuter>(p.out, word, row, piece.rows - row, column);
  }
  named_sync(3, T::kConsumerThreads);
  if (thread == 0 && atomicAdd(flag, 1u) == 2u * static_cast<unsigned>(parts) - 1u) *flag = 0;  // the last one leaves it as it was
}

/// Puts a contribution into memory and says that it is there.
template <class T>
__device__ void contribute(const Fp8Params& p, const float (&sums)[T::kStrips][T::kCount]) {
  constexpr int kWords = T::kStrips * T::kCount / 4;
  float4* mine = reinterpret_cast<float4*>(p.partials) + static_cast<std::int64_t>(blockIdx.x) * kWords * T::kConsumerThreads + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const float* s = sums[i * 4 / T::kCount] + i * 4 % T::kCount;
    __stcg(mine + i * T::kConsumerThreads, make_float4(s[0], s[1], s[2], s[3]));
  }
  __threadfence();
  named_sync(3, T::kConsumerThreads);
  if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(p.flags + blockIdx.x) : "memory");
}

/// Adds what the following workers contributed to this worker's tile.
template <class T>
__device__ void add_contributions(const Fp8Params& p, const Fp8Piece& piece, int worker, int rank, float (&sums)[T::kStrips][T::kCount]) {
  constexpr int kWords = T::kStrips * T::kCount / 4;
  for (int c = 1; c <= piece.contributors; ++c) {
    if (p.schedule.range_begin(worker + c) == p.schedule.range_begin(worker + c + 1)) continue;
    const std::int64_t from = static_cast<std::int64_t>(worker + c) * T::kCluster + rank;
    if (threadIdx.x == 0) {
      unsigned there = 0;
      while (there == 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(p.flags + from) : "memory");
    }
    named_sync(3, T::kConsumerThreads);
    const float4* theirs = reinterpret_cast<const float4*>(p.partials) + from * kWords * T::kConsumerThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const float4 part = __ldcg(theirs + i * T::kConsumerThreads);
      float* s = sums[i * 4 / T::kCount] + i * 4 % T::kCount;
      s[0] += part.x, s[1] += part.y, s[2] += part.z, s[3] += part.w;
    }
    named_sync(3, T::kConsumerThreads);
    if (threadIdx.x == 0) p.flags[from] = 0;
  }
}

/// The factors of one k block, read while the products of the block before it run.
template <class T>
struct BlockFactors {
  static constexpr int kColumns = T::kTileN == 192 ? 3 : 1;  ///< factors of columns 0, 64, 128 of the warpgroup and on, or one for all
  float of[T::kStrips][2][kColumns];                         ///< of rows t / 4 and t / 4 + 8 of each strip

  __device__ void load(const Fp8Shared<T>& shared, int stage, int first_row, int group_n, bool early) {
    float tile[3] = {1.0f, 1.0f, 1.0f};
    if constexpr (T::kTileScales) {
      const float* words = shared.tile_scales(stage) + (T::kTileN == 256 ? group_n : 0);
      tile[0] = words[0];
      if constexpr (T::kTileN == 192) {
        tile[2] = words[1];
        tile[1] = early ? tile[2] : tile[0];
      }
    }
#pragma unroll
    for (int i = 0; i < T::kStrips * 2; ++i) {
      const float row = T::kScalesOfA ? shared.a_scales(stage)[first_row + i / 2 * 64 + i % 2 * 8] : 1.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) of[i / 2][i % 2][c] = row * tile[c];
    }
  }
};

/// A consumer warpgroup.
template <class T>
__device__ void consume(const Fp8Params& p, const CUtensorMap& d, const Fp8Shared<T>& shared, int worker, int rank) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread % 128 / 32;
  const int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // the same in all lanes, and known to be
  const int group_m = T::kGroupsM == 2 ? group : 0, group_n = T::kGroupsN == 2 ? group : 0;
  const int first_row = group_m * T::kGroupM + warp * 16 + lane / 4;
  const std::uint32_t first_a = operand_word(shared_address(shared.a(0)) + group_m * T::kGroupM * 128);
  const std::uint32_t first_b = operand_word(shared_address(shared.b(0)) + group_n * T::kGroupN * 128);
  std::byte* staging = shared.staging + (group * 4 + warp) * T::kBoxes * kStagingBytes;
  constexpr int kTurn = 1;  // named barriers 1 and 2: a warpgroup's turn to multiply; 3: all consumers
  if (T::kInTurn && group == 1) named_arrive(kTurn, T::kConsumerThreads);
  wait_for_earlier_kernels();

  RingPosition<T::kStages> at;
  Fp8Work work(p.schedule, p.m, worker);
  Fp8Piece piece{};
  while (work.next(piece)) {
    const TilePlace place = place_of<T>(p, piece, rank);
    const int column = place.column + group_n * T::kGroupN;
    const bool early = T::kTileN == 192 && place.column % 128 != 0;  // the second block of columns begins at column 64, not 128
    float sums[T::kStrips][T::kCount];
#pragma unroll
    for (int i = 0; i < T::kStrips * T::kCount; ++i) sums[i / T::kCount][i % T::kCount] = 0.0f;

    BlockFactors<T> factors;
    if (piece.k_begin < piece.k_end) {
      shared.full[at.stage].wait(at.parity);
      factors.load(shared, at.stage, first_row, group_n, early);
    }
    for (int block = piece.k_begin; block < piece.k_end; ++block) {
      // The same in all lanes, and known to be: descriptors are then computed in uniform registers.
      const std::uint32_t stage_offset = __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(at.stage * (T::kStageBytes / 16)), 0);
      RingPosition<T::kStages> next = at;
      next.advance();
      BlockFactors<T> next_factors = factors;
#pragma unroll
      for (int strip = 0; strip < T::kStrips; ++strip) {
        constexpr int kLast = T::kStrips - 1;
        float accumulators[T::kCount];
        const std::uint32_t a = first_a + stage_offset + strip * (64 * 128 / 16), b = first_b + stage_offset;
        if constexpr (T::kInTurn) named_sync(kTurn + group, T::kConsumerThreads);
        pin(accumulators);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma<T::kPair>(accumulators, operand(a + step * 2), operand(b + step * 2), step > 0);
        wgmma_commit();
        if constexpr (T::kInTurn) named_arrive(kTurn + (group ^ 1), T::kConsumerThreads);

        float column_scale[T::kScalesOfB ? T::kCount / 2 : 1];
        if constexpr (T::kScalesOfB) {
#pragma unroll
          for (int i = 0; i < T::kCount / 4; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(shared.b_scales(at.stage) + group_n * T::kGroupN + i * 8 + lane % 4 * 2);
            column_scale[2 * i] = two.x;
            column_scale[2 * i + 1] = two.y;
          }
        }
        if (strip == kLast && block + 1 < piece.k_end) {
          shared.full[next.stage].wait(next.parity);
          next_factors.load(shared, next.stage, first_row, group_n, early);
        }
        wgmma_wait<0>();
        pin(accumulators);
        if (strip == kLast && lane < T::kCluster) {  // the stage is read: its producers may fill it again
          if constexpr (T::kCluster == 1)
            shared.empty[at.stage].arrive();
          else
            arrive_remote(shared.empty[at.stage], static_cast<std::uint32_t>(lane));
        }
#pragma unroll
        for (int i = 0; i < T::kCount; ++i) {  // promotion
          const float factor = factors.of[strip][i / 2 % 2][BlockFactors<T>::kColumns == 3 ? i / 32 : 0];
          float& sum = sums[strip][i];
          if constexpr (T::kScaling == Fp8Scaling::kOuter)
            sum += accumulators[i];
          else if constexpr (T::kScalesOfB)
            sum = __fmaf_rn(accumulators[i], factor * column_scale[i / 4 * 2 + i % 2], sum);
          else
            sum = __fmaf_rn(accumulators[i], factor, sum);
        }
      }
      factors = next_factors;
      at = next;
    }

    if (p.schedule.parts > 1) {
      finish_share<T>(p, piece, place, sums);
      continue;
    }
    if (piece.contribution) {
      contribute<T>(p, sums);
      continue;
    }
    add_contributions<T>(p, piece, worker, rank, sums);
    if (lane == 0) wait_stores_read();
    __syncwarp();
    const std::int64_t group_row = p.schedule.grouping == Fp8Grouping::kDepth ? piece.group * p.d_group_rows : piece.first_row;
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip) {
      const int row = place.row + group_m * T::kGroupM + strip * 64 + warp * 16, rows = piece.rows - row;
      if constexpr (T::kScaling == Fp8Scaling::kOuter) scale_sums(p.out, sums[strip], group_row + row, rows, column);
      if constexpr (T::kSwapped)
        store_transposed(p.out, sums[strip], row, rows, column, staging);
      else if (p.out.vector_stores)
        store_plain(p.out, d, sums[strip], group_row + row, rows, column, staging + strip * (T::kGroupN / 64) * kStagingBytes);
      else
        store_any(p.out, sums[strip], group_row + row, rows, column, staging);
    }
    if (lane == 0) commit_stores();
  }
  if (lane == 0) wait_stores_read();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    fp8_product(const __grid_constant__ Fp8Params p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap sa, const __grid_constant__ CUtensorMap sb, const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const Fp8Shared<T> shared(memory);
  const int rank = T::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(T::kTileScales ? 2 : 1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    fence_barriers();
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<24>();
    if (threadIdx.x == T::kConsumerThreads) produce<T>(p, a, b, sa, sb, shared, worker, rank);
  } else {
    take_registers<240>();
    consume<T>(p, d, shared, worker, rank);
  }
  if constexpr (T::kCluster > 1) cluster_sync();  // nobody leaves while its shared memory may still be written from outside
}

}  // namespace narrow::cuda::sm90
