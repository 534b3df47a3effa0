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

#include "kernels/cuda/sm90/byte_epilogue.cuh"
#include "kernels/cuda/sm90/byte_schedule.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace narrow::cuda::sm90 {

enum class Share : std::uint8_t { kNothing, kA, kB };  ///< what the two thread blocks of a cluster have in common

/// What is known when a kernel is compiled.
template <int kTileM_, int kTileN_, int kStages_, Share kShare_, ByteScaling kScaling_ = ByteScaling::kBlockTile,
          BytePair kPair_ = BytePair::kE4m3E4m3, bool kSwapped_ = false>
struct ByteTile {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_, kTileK = 128;
  static constexpr Share kShare = kShare_;
  static constexpr ByteScaling kScaling = kScaling_;
  static constexpr BytePair kPair = kPair_;
  static constexpr bool kSwapped =
      kSwapped_;  ///< few rows: the weights take wgmma's 64 rows, the rows of A its columns; D is stored transposed
  static constexpr int kCluster = kShare == Share::kNothing ? 1 : 2;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128;
  static constexpr int kGroupsM = kTileM >= 128 ? 2 : 1, kGroupsN = kConsumers / kGroupsM;  ///< warpgroups along m and n
  static constexpr int kGroupM = kTileM / kGroupsM, kGroupN = kTileN / kGroupsN;            ///< a warpgroup's part
  static constexpr int kStrips = kGroupM / 64;  ///< products of 64 rows that it computes one after the other
  static constexpr int kCount = kGroupN / 2;    ///< accumulators of a thread
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kBytesA = kTileM * kTileK, kBytesB = kTileN * kTileK;
  static constexpr bool kTileScales = kScaling == ByteScaling::kBlockTile;  ///< scales of 128x128 tiles of the weights
  static constexpr bool kScalesOfA = kScaling != ByteScaling::kOuter && !(kTileScales && kSwapped);  ///< 1x128 scales of the left operand
  static constexpr bool kScalesOfB = kScaling == ByteScaling::kBlockBlock || (kTileScales && kSwapped);  ///< and of the right one
  static constexpr int kScaleBytesA = kScalesOfA ? kTileM * 4 + 128 : 0, kScaleBytesB = kScalesOfB ? (kTileN * 4 + 127) / 128 * 128 : 0;
  static constexpr int kTileScaleBytes = kTileScales ? 16 : 0;
  /// Two sets of accumulators, where the registers are there (and one scale per row serves all columns): the products of the next k block
  /// run while this one's are promoted.
  static constexpr bool kPipelined = kStrips == 1 && kCount <= 64 && !kScalesOfB;
  /// Without them the two warpgroups multiply in turn, so that one's products run while the other promotes. (With two strips each they
  /// drift apart by themselves.)
  static constexpr bool kTurns = !kPipelined && kStrips == 1 && kCount >= 64;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kCopiedBytes = kStageBytes + (kScalesOfA ? kTileM * 4 : 0) + (kScalesOfB ? kTileN * 4 : 0);
  static constexpr int kBoxes = kSwapped ? 1 : kStrips * (kGroupN / 64);  ///< staged boxes of a warp
  static constexpr int kBoxesPerStage = kStageBytes / kStagingBytes;
  static constexpr int kBorrowed = (kConsumers * 4 * kBoxes + kBoxesPerStage - 1) / kBoxesPerStage;  ///< stages that the epilogue borrows
  static constexpr int kNotes = 4;  ///< pieces that the producer may be ahead of the consumers
  static constexpr int kShared = 1024 + kStages * (kStageBytes + kScaleBytesA + kScaleBytesB + kTileScaleBytes) +
                                 ((kStages + kNotes) * 2 + kConsumers) * static_cast<int>(sizeof(Barrier)) + kNotes * 64;
  static_assert(kTileM % 64 == 0 && kGroupM % 64 == 0 &&
                (kGroupN == 16 || kGroupN == 32 || kGroupN == 64 || kGroupN == 128 || kGroupN == 192));
  static_assert(!kSwapped || (kTileM == 128 && kShare == Share::kNothing));
  static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0 && kShared <= 232448 && kBorrowed < kStages);
};

struct ByteParams {
  ByteSchedule schedule;
  ByteOutput out;
  const float* b_scales;      ///< of kBlockTile
  int m, n, k_blocks;         ///< k_blocks: a row of b_scales
  std::int64_t d_group_rows;  ///< of kDepth: rows of D per group
};

/// Where a thread block's part of a piece lies.
struct TilePlace {
  int row, column;  ///< inside the group
};

/// What the producer tells the consumers of its thread block about a piece; they read it where they need it, so that it takes no registers.
struct PieceNote {
  BytePiece piece;
  TilePlace place;
  bool last;  ///< no piece: the end
};
static_assert(sizeof(PieceNote) <= 64);

/// The thread block's shared memory.
template <class T>
struct ByteShared {
  std::byte* tiles;
  float* scales_a;
  float* scales_b;
  float* scales_tile;
  Barrier* full;
  Barrier* empty;
  Barrier* noted;
  Barrier* read;
  Barrier* turn;
  PieceNote* notes;

  __device__ explicit ByteShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    std::byte* scales = tiles + T::kStages * T::kStageBytes;
    scales_a = reinterpret_cast<float*>(scales);
    scales_b = reinterpret_cast<float*>(scales + T::kStages * T::kScaleBytesA);
    scales_tile = reinterpret_cast<float*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB));
    full = reinterpret_cast<Barrier*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB + T::kTileScaleBytes));
    empty = full + T::kStages;
    noted = empty + T::kStages;
    read = noted + T::kNotes;
    turn = read + T::kNotes;
    notes = reinterpret_cast<PieceNote*>(turn + T::kConsumers);
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

template <class T>
__device__ TilePlace place_of(const ByteParams& p, const BytePiece& piece, int rank) {
  const int tiles_m = p.schedule.grouping == ByteGrouping::kNone || p.schedule.grouping == ByteGrouping::kDepth
                          ? p.schedule.tiles_m
                          : (piece.rows + p.schedule.tile_m - 1) / p.schedule.tile_m;
  const int2 place = place_of_tile(piece.tile, tiles_m, p.schedule.tiles_n, p.schedule.band);
  const int along_m = T::kShare == Share::kB ? 2 : 1, along_n = T::kShare == Share::kA ? 2 : 1;
  return {(place.x * along_m + (T::kShare == Share::kB ? rank : 0)) * T::kTileM,
          (place.y * along_n + (T::kShare == Share::kA ? rank : 0)) * T::kTileN};
}

/// The producer: one thread.
template <class T>
__device__ void produce(const ByteParams& p, const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& sa, const CUtensorMap& sb,
                        const CUtensorMap& sa4, const ByteShared<T>& shared, int worker, int rank) {
  RingPosition<T::kStages> at;
  RingPosition<T::kNotes> note;
  ByteWork work(p.schedule, p.m, worker);
  BytePiece piece{};
  // Groups come from memory that earlier kernels may write. Else the first piece is known, and its weights can already come into the
  // second-level cache, while those kernels run.
  const bool grouped = p.schedule.grouping != ByteGrouping::kNone;
  if (grouped) wait_for_earlier_kernels();
  for (bool more = true, first = !grouped; more; note.advance()) {
    more = work.next(piece);
    const TilePlace place = more ? place_of<T>(p, piece, rank) : TilePlace{};
    shared.read[note.stage].wait(note.parity ^ 1u);
    shared.notes[note.stage] = {piece, place, !more};
    shared.noted[note.stage].arrive();
    if (first) {
      for (int block = piece.k_begin; more && block < min(piece.k_begin + T::kStages, piece.k_end); ++block)
        prefetch_box(T::kSwapped ? a : b, block * 128,
                     T::kSwapped ? place.row : place.column + (T::kShare == Share::kB ? rank * T::kTileN / 2 : 0));
      wait_for_earlier_kernels();
      first = false;
    }
    if (!more) break;
    const bool by_rows = p.schedule.grouping == ByteGrouping::kRowOffsets || p.schedule.grouping == ByteGrouping::kRowCounts;
    const int row_a = piece.first_row + place.row, row_b = (by_rows ? piece.group * p.n : 0) + place.column;
    // Boxes of scales start at multiples of 16 bytes. A group's rows may not (any_row): then the box starts up to three scales early, and a
    // second one brings the last ones.
    const bool any_row = p.schedule.grouping == ByteGrouping::kRowOffsets;
    const bool counts = p.schedule.grouping == ByteGrouping::kRowCounts;
    const int scale_row_a = any_row ? row_a / 4 * 4 : (counts ? piece.group * static_cast<int>(round_up_to_4(p.m)) : 0) + place.row;
    const int scale_row_b = (by_rows ? piece.group * static_cast<int>(round_up_to_4(p.n)) : 0) + place.column;
    // Scales of B's 128x128 tiles: a tile touches one block of columns, or two.
    const int blocks = ((T::kSwapped ? p.m : p.n) + 127) / 128;
    const int first_block = min((T::kSwapped ? place.row : place.column) / 128, blocks - 1),
              second_block = min(first_block + 1, blocks - 1);
    const float* tile_scales = p.b_scales + static_cast<std::int64_t>(by_rows ? piece.group : 0) * blocks * p.k_blocks;
    const float* first_scale = tile_scales + static_cast<std::int64_t>(first_block) * p.k_blocks;
    const float* second_scale = tile_scales + static_cast<std::int64_t>(second_block) * p.k_blocks;
    for (int block = piece.k_begin; block < piece.k_end; ++block) {
      shared.empty[at.stage].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.stage];
      full.arrive_expecting(T::kCopiedBytes + (T::kScalesOfA && any_row ? 16 : 0));
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
      if constexpr (T::kScalesOfA) {
        copy_box(shared.a_scales(at.stage), sa, scale_row_a, block, full);
        if (any_row) copy_box(shared.a_scales(at.stage) + T::kTileM, sa4, scale_row_a + T::kTileM, block, full);
      }
      if constexpr (T::kScalesOfB) copy_box(shared.b_scales(at.stage), sb, scale_row_b, block, full);
      if constexpr (T::kTileScales) {
        copy_word(shared.tile_scales(at.stage), first_scale + block);
        if constexpr (T::kTileN > 128) copy_word(shared.tile_scales(at.stage) + 1, second_scale + block);
        arrive_after_words(full);
      }
      at.advance();
    }
    if (p.schedule.parts > 1) continue;
    for (int i = 0; i < T::kBorrowed; ++i, at.advance()) {  // the epilogue's
      shared.empty[at.stage].wait(at.parity ^ 1u);
      shared.full[at.stage].arrive();
      if constexpr (T::kTileScales) shared.full[at.stage].arrive();
    }
  }
}

/// A tile that was cut into parts: the thread blocks of the cluster lay their sums into shared memory, as rows of D, and each adds up, in
/// the order of the parts, and finishes its share of the rows.
template <class T>
__device__ void finish_share(const ByteParams& p, const BytePiece& piece, const TilePlace& place, const float (&sums)[T::kStrips][T::kCount],
                             float* tile) {
  constexpr int kRows = T::kSwapped ? T::kTileN : T::kTileM, kColumns = T::kSwapped ? T::kTileM : T::kTileN, kPitch = kColumns + 4;
  static_assert(kRows * kPitch * 4 <= T::kStages * T::kStageBytes);
  const int thread = thread_here(), lane = thread % 32, warp = thread % 128 / 32, group = thread / 128, parts = p.schedule.parts;
  const int left = (T::kGroupsM == 2 ? group : 0) * T::kGroupM + warp * 16 + lane / 4,
            right = (T::kGroupsN == 2 ? group : 0) * T::kGroupN + lane % 4 * 2;
  named_sync(1, T::kConsumerThreads);  // the stages are not read any more
#pragma unroll
  for (int i = 0; i < T::kStrips * T::kCount; ++i) {
    const int strip = i / T::kCount, at = i % T::kCount, l = left + strip * 64 + at / 2 % 2 * 8, r = right + at / 4 * 8 + at % 2;
    tile[T::kSwapped ? r * kPitch + l : l * kPitch + r] = sums[strip][at];
  }
  cluster_sync();
  const int first = kRows * piece.part / parts, last = kRows * (piece.part + 1) / parts;
  const int rows = T::kSwapped ? p.n - place.column : piece.rows - place.row, columns = T::kSwapped ? p.m - place.row : p.n - place.column;
  const std::int64_t d_row = T::kSwapped ? place.column : place.row;
  const int d_column = T::kSwapped ? place.row : place.column;
  for (int i = first * (kColumns / 4) + thread; i < last * (kColumns / 4); i += T::kConsumerThreads) {
    const int r = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
    float4 word = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int part = 0; part < parts; ++part) {
      const float4 more = load_remote(tile + r * kPitch + c, static_cast<std::uint32_t>(part));
      word.x += more.x, word.y += more.y, word.z += more.z, word.w += more.w;
    }
    if (r < rows && c < columns)
      store_four<T::kSwapped, T::kScaling == ByteScaling::kOuter>(p.out, word, d_row + r, d_column + c, columns - c);
  }
}

/// The factors of one k block, read while the products of the block before it run.
template <class T>
struct BlockFactors {
  static constexpr int kColumns = T::kTileN == 192 ? 3 : 1;  ///< factors of columns 0, 64, 128 of the warpgroup and on, or one for all
  float of[T::kStrips][2][kColumns];                         ///< of rows t / 4 and t / 4 + 8 of each strip

  __device__ void load(const ByteShared<T>& shared, int stage, int first_row, int group_n, bool early) {
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
__device__ void consume(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread % 128 / 32;
  const int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // the same in all lanes, and known to be
  const int group_m = T::kGroupsM == 2 ? group : 0, group_n = T::kGroupsN == 2 ? group : 0;
  const int first_row = group_m * T::kGroupM + warp * 16 + lane / 4;
  const std::uint32_t first_a = operand_word(shared_address(shared.a(0)) + group_m * T::kGroupM * 128);
  const std::uint32_t first_b = operand_word(shared_address(shared.b(0)) + group_n * T::kGroupN * 128);

  unsigned turns = 0;  // taken so far; an mbarrier, since the compiler would move a bar.sync above the promotion
  if (T::kTurns && group == 1 && lane == 0) shared.turn[0].arrive();
  RingPosition<T::kStages> at, borrowed;
  RingPosition<T::kNotes> note;
  bool lent = false;  // stages from `borrowed` on hold output that tensor copies still read
  const auto release = [&](int stage) {
    __syncwarp();  // all lanes have read their scales
    if (lane >= T::kCluster) return;
    if constexpr (T::kCluster == 1) shared.empty[stage].arrive();
    else arrive_remote(shared.empty[stage], static_cast<std::uint32_t>(lane));
  };
  const auto give_back = [&] {
    if (lane == 0) wait_stores_read();
    __syncwarp();
    for (int i = 0; i < T::kBorrowed; ++i, borrowed.advance()) release(borrowed.stage);
    lent = false;
  };
  // The same in all lanes, and known to be: descriptors are then computed in uniform registers.
  const auto offset_of = [](int stage) { return __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(stage * (T::kStageBytes / 16)), 0); };
  const auto forget = [&] {  // the note is read
    __syncwarp();
    if (lane == 0) shared.read[note.stage].arrive();
    note.advance();
  };
  for (;;) {
    shared.noted[note.stage].wait(note.parity);
    const PieceNote& told = shared.notes[note.stage];
    if (told.last) break;
    const BytePiece& piece = told.piece;
    const TilePlace& place = told.place;
    const int scale_row = first_row + (p.schedule.grouping == ByteGrouping::kRowOffsets ? piece.first_row % 4 : 0);
    const bool early = T::kTileN == 192 && place.column % 128 != 0;  // the second block of columns begins at column 64, not 128
    float sums[T::kStrips][T::kCount];
#pragma unroll
    for (int i = 0; i < T::kStrips * T::kCount; ++i) sums[i / T::kCount][i % T::kCount] = 0.0f;

    if constexpr (T::kPipelined) {
      float accumulators[2][T::kCount];
      BlockFactors<T> factors[2];
      int left = piece.k_end - piece.k_begin;
      const auto issue = [&](float(&into)[T::kCount], BlockFactors<T>& its, const RingPosition<T::kStages>& where) {
        const std::uint32_t stage_offset = offset_of(where.stage);
        shared.full[where.stage].wait(where.parity);
        pin(into);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
          wgmma<T::kPair>(into, operand(first_a + stage_offset + step * 2), operand(first_b + stage_offset + step * 2), step > 0);
        wgmma_commit();
        its.load(shared, where.stage, scale_row, group_n, early);
      };
      const auto promote = [&](float(&from)[T::kCount], const BlockFactors<T>& its) {
        pin(from);
#pragma unroll
        for (int i = 0; i < T::kCount; ++i)
          sums[0][i] = T::kScaling == ByteScaling::kOuter ? sums[0][i] + from[i] : __fmaf_rn(from[i], its.of[0][i / 2 % 2][0], sums[0][i]);
      };
      // Issue and wait stand in straight lines, without conditions: else the compiler serialises the products.
      const auto step = [&](float(&now)[T::kCount], const BlockFactors<T>& its, float(&then)[T::kCount], BlockFactors<T>& next_its) {
        RingPosition<T::kStages> next = at;
        next.advance();
        issue(then, next_its, next);
        wgmma_wait<1>();
        release(at.stage);
        promote(now, its);
        at = next;
      };
      const auto finish = [&](float(&now)[T::kCount], const BlockFactors<T>& its) {
        wgmma_wait<0>();
        release(at.stage);
        promote(now, its);
        at.advance();
      };
      if (lent) give_back();
      if (left > 0) {
        issue(accumulators[0], factors[0], at);
        for (; left > 2; left -= 2) {
          step(accumulators[0], factors[0], accumulators[1], factors[1]);
          step(accumulators[1], factors[1], accumulators[0], factors[0]);
        }
        if (left == 2) {
          step(accumulators[0], factors[0], accumulators[1], factors[1]);
          finish(accumulators[1], factors[1]);
        } else {
          finish(accumulators[0], factors[0]);
        }
      }
    } else {
      BlockFactors<T> factors;
      int left = piece.k_end - piece.k_begin;
      if (left > 0) {
        shared.full[at.stage].wait(at.parity);
        factors.load(shared, at.stage, scale_row, group_n, early);
      }
      for (; left > 0; --left) {
        const std::uint32_t stage_offset = offset_of(at.stage);
        RingPosition<T::kStages> next = at;
        next.advance();
        BlockFactors<T> next_factors = factors;
#pragma unroll
        for (int strip = 0; strip < T::kStrips; ++strip) {
          constexpr int kLast = T::kStrips - 1;
          float accumulators[T::kCount];
          const std::uint32_t a = first_a + stage_offset + strip * (64 * 128 / 16), b = first_b + stage_offset;
          if constexpr (T::kTurns) shared.turn[group].wait(turns++);
          pin(accumulators);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) wgmma<T::kPair>(accumulators, operand(a + step * 2), operand(b + step * 2), step > 0);
          wgmma_commit();
          if (T::kTurns && lane == 0) shared.turn[group ^ 1].arrive();

          float column_scale[T::kScalesOfB ? T::kCount / 2 : 1];
          if constexpr (T::kScalesOfB) {
#pragma unroll
            for (int i = 0; i < T::kCount / 4; ++i) {
              const float2 two = *reinterpret_cast<const float2*>(shared.b_scales(at.stage) + group_n * T::kGroupN + i * 8 + lane % 4 * 2);
              column_scale[2 * i] = two.x;
              column_scale[2 * i + 1] = two.y;
            }
          }
          if (strip == kLast && lent) give_back();
          if (strip == kLast && left > 1) {
            shared.full[next.stage].wait(next.parity);
            next_factors.load(shared, next.stage, scale_row, group_n, early);
          }
          wgmma_wait<0>();
          pin(accumulators);
          if (strip == kLast) release(at.stage);
#pragma unroll
          for (int i = 0; i < T::kCount; ++i) {  // promotion
            const float factor = factors.of[strip][i / 2 % 2][BlockFactors<T>::kColumns == 3 ? i / 32 : 0];
            float& sum = sums[strip][i];
            if constexpr (T::kScaling == ByteScaling::kOuter) sum += accumulators[i];
            else if constexpr (T::kScalesOfB) sum = __fmaf_rn(accumulators[i], factor * column_scale[i / 4 * 2 + i % 2], sum);
            else sum = __fmaf_rn(accumulators[i], factor, sum);
          }
        }
        factors = next_factors;
        at = next;
      }
    }

    wait_for_earlier_kernels();        // from here on D and partial sums are written; the producer has waited before the operands were read
    if constexpr (T::kCluster == 1) {  // clusters have no parts
      if (p.schedule.parts > 1) {
        finish_share<T>(p, piece, place, sums, reinterpret_cast<float*>(shared.tiles));
        forget();
        continue;
      }
    }
    if (lent) give_back();
    borrowed = at;
    RingPosition<T::kStages> lender[T::kBorrowed];
#pragma unroll
    for (int i = 0; i < T::kBorrowed; ++i, at.advance()) {
      shared.full[at.stage].wait(at.parity);
      lender[i] = at;
    }
    const int here = thread_here(), warp_here = here % 128 / 32, group_here = here / 128;
    const auto staging = [&](int box) {
      const int index = (group_here * 4 + warp_here) * T::kBoxes + box, which = index / T::kBoxesPerStage;
      const int stage = T::kBorrowed == 1 || which == 0 ? lender[0].stage : lender[T::kBorrowed - 1].stage;
      return shared.a(stage) + (index - which * T::kBoxesPerStage) * kStagingBytes;
    };
    const int column = place.column + (T::kGroupsN == 2 ? group_here : 0) * T::kGroupN;
    const int first =
        place.row + (T::kGroupsM == 2 ? group_here : 0) * T::kGroupM + warp_here * 16;  // of the group; strips are 64 rows apart
    const std::int64_t group_row = p.schedule.grouping == ByteGrouping::kDepth ? piece.group * p.d_group_rows : piece.first_row;
    // Row and column scales: every group has its own rows of A, and its own matrix of B; groups along k share them.
    [[maybe_unused]] const std::int64_t outer_row = piece.first_row;
    [[maybe_unused]] const std::int64_t outer_column =
        p.schedule.grouping == ByteGrouping::kDepth ? 0 : static_cast<std::int64_t>(piece.group) * p.n;
    constexpr int kPerStrip = T::kGroupN >= 64 ? T::kGroupN / 64 : 1;
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip) {
      const int row = first + strip * 64, rows = piece.rows - row;
      if constexpr (T::kScaling == ByteScaling::kOuter) scale_sums(p.out, sums[strip], outer_row + row, rows, column, outer_column);
      if constexpr (T::kSwapped) {
        store_transposed(p.out, sums[strip], row, rows, column, staging(0));
      } else if (p.out.vector_stores) {
#pragma unroll
        for (int box = 0; box < kPerStrip; ++box)
          stage_box(p.out.epilogue.out == DType::kF16, sums[strip] + box * 32, staging(strip * kPerStrip + box));
      } else {
        store_any(p.out, sums[strip], group_row + row, rows, column, staging(0));
      }
    }
    if (!T::kSwapped && p.out.vector_stores) {
      fence_shared_for_copies();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < T::kBoxes; ++i) {
        const int row = first + i / kPerStrip * 64, rows = piece.rows - row, box_column = column + i % kPerStrip * 64;
        if (rows >= 16 || p.out.rows_end_with_d) {
          if (lane == 0) store_box(d, box_column, static_cast<int>(group_row) + row, staging(i));
        } else {
          store_staged_rows(p.out, group_row + row, rows, box_column, staging(i));
        }
      }
      if (lane == 0) commit_stores();
    }
    lent = true;
    forget();
  }
  if (lane == 0) wait_stores_read();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    byte_product(const __grid_constant__ ByteParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap sa, const __grid_constant__ CUtensorMap sb, const __grid_constant__ CUtensorMap sa4,
                const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const ByteShared<T> shared(memory);
  const bool parted = T::kCluster == 1 && p.schedule.parts > 1;
  const int rank = T::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    if constexpr (T::kScalesOfA) prefetch_map(sa);
    if constexpr (T::kScalesOfB) prefetch_map(sb);
    if (p.out.vector_stores) prefetch_map(d);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(T::kTileScales ? 2 : 1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    for (int group = 0; group < T::kConsumers; ++group) shared.turn[group].init(4);
    for (int note = 0; note < T::kNotes; ++note) {
      shared.noted[note].init(1);
      shared.read[note].init(T::kConsumers * 4);
    }
    fence_barriers();
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<40>();
    if (threadIdx.x == T::kConsumerThreads) produce<T>(p, a, b, sa, sb, sa4, shared, worker, rank);
  } else {
    take_registers<232>();
    consume<T>(p, d, shared);
  }
  if (parted && threadIdx.x >= T::kConsumerThreads) cluster_sync();  // the consumers are in finish_share
  if (T::kCluster > 1 || parted) cluster_sync();                     // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
