#pragma once
/// The Hopper main loop of products of one-byte elements, D = epilogue(A * B^T), one kernel for all formats, scalings, groupings and tiles.
///
/// Mapping:  persistent thread blocks. One producer warp copies k blocks of 128 of A and B (and their scales) by TMA into a ring of
///           stages; two consumer warpgroups multiply them by wgmma, each its own part of the tile. In clusters of two the thread blocks
///           lie side by side and each loads half of the operand they share for both.
/// Scales:   integers, and fp8 in the tensor cores' own sums, stay in the accumulators until all of k is added up. Else wgmma sums 128
/// along
///           k into fresh accumulators, which are then promoted, sum = fma(accumulator, factor, sum), into fp32 registers:
///           factor = scale of A's row * scale of B's block. Other products run meanwhile (TileForm, Loop).
/// Requires: compute capability 9.0; rows of A and B 16-byte aligned (checked in ops/).
/// Bound:    arithmetic beyond about 200 rows, else the bytes of B. Meaning: reference/matmul.cc; integers exactly, fp8 within the bound of
///           the numerics contract.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/sm90/byte_epilogue.cuh"
#include "kernels/cuda/sm90/byte_schedule.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace narrow::cuda::sm90 {

enum class Share : std::uint8_t { kNothing, kA, kB };  ///< what the two thread blocks of a cluster have in common

enum class TileForm : std::uint8_t {
  kPlain,
  kSwapped,    ///< few rows: the weights take wgmma's 64 rows, the rows of A its columns; D is stored transposed
  kCol32,      ///< A lies in stripes of 32 columns
  kRegisters,  ///< A goes through registers, in which one fragment serves all columns of the tile
};

/// How a warpgroup multiplies.
enum class Loop : std::uint8_t {
  kDirect,     ///< the accumulators are the sums
  kPipelined,  ///< two sets of accumulators: the products of the next k block run while this one's are promoted
  kRegisters,  ///< strips of 64 columns, a set of accumulators each in turn: the next strip's products run while this one's are promoted
  kTurns,      ///< one set; the two warpgroups multiply in turn, so that one's products run while the other promotes
  kFree,       ///< one set; with several strips of 64 rows they drift apart by themselves
};

/// What is known when a kernel is compiled.
template <int kTileM_, int kTileN_, int kStages_, Share kShare_, ByteScaling kScaling_ = ByteScaling::kBlockTile,
          BytePair kPair_ = BytePair::kE4m3E4m3, TileForm kForm_ = TileForm::kPlain>
struct ByteTile {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_, kTileK = 128;
  static constexpr Share kShare = kShare_;
  static constexpr ByteScaling kScaling = kScaling_;
  static constexpr BytePair kPair = kPair_;
  static constexpr TileForm kForm = kForm_;
  static constexpr bool kSwapped = kForm == TileForm::kSwapped, kCol32 = kForm == TileForm::kCol32, kOuter = is_outer(kScaling);
  using Sum = std::conditional_t<kPair == BytePair::kS8S8, int, float>;
  static constexpr int kCluster = kShare == Share::kNothing ? 1 : 2;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128;
  static constexpr int kGroupsM = kTileM >= 128 ? 2 : 1, kGroupsN = kConsumers / kGroupsM;  ///< warpgroups along m and n
  static constexpr int kGroupM = kTileM / kGroupsM, kGroupN = kTileN / kGroupsN;            ///< a warpgroup's part
  static constexpr int kStrips = kGroupM / 64;  ///< products of 64 rows that it computes one after the other
  static constexpr int kCount = kGroupN / 2;    ///< sums of a thread and strip
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kBytesA = kTileM * kTileK, kBytesB = kTileN * kTileK;
  static constexpr bool kTileScales = kScaling == ByteScaling::kBlockTile;   ///< scales of 128x128 tiles of the weights
  static constexpr bool kScalesOfA = !kOuter && !(kTileScales && kSwapped);  ///< 1x128 scales of the left operand
  static constexpr bool kScalesOfB = kScaling == ByteScaling::kBlockBlock || (kTileScales && kSwapped);  ///< and of the right one
  static constexpr int kScaleBytesA = kScalesOfA ? kTileM * 4 + 128 : 0, kScaleBytesB = kScalesOfB ? (kTileN * 4 + 127) / 128 * 128 : 0;
  static constexpr int kTileScaleBytes = kTileScales ? 16 : 0;
  static constexpr Loop kLoop = kPair == BytePair::kS8S8 || kScaling == ByteScaling::kOuterFast ? Loop::kDirect
                                : kForm == TileForm::kRegisters                                 ? Loop::kRegisters
                                : kStrips == 1 && kCount <= 64 && !kScalesOfB                   ? Loop::kPipelined
                                : kStrips == 1 && kCount >= 64                                  ? Loop::kTurns
                                                                                                : Loop::kFree;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kCopiedBytes = kStageBytes + (kScalesOfA ? kTileM * 4 : 0) + (kScalesOfB ? kTileN * 4 : 0);
  static constexpr int kNotes = 4;  ///< pieces that the producer may be ahead of the consumers
  using Terms = TileTerms<kGroupM, kGroupN, kOuter, std::is_same_v<Sum, int>>;
  static constexpr int kTermBytes = kSwapped ? 0 : (static_cast<int>(sizeof(Terms)) + 127) / 128 * 128;  ///< of a warpgroup
  /// Boxes of D that a warp has staged at once: a tile of 16-bit values, whose stores then run under the next tile's products.
  static constexpr int kBoxes = kSwapped ? 1 : std::max(1, kStrips * kGroupN / 64);
  static constexpr int kShared = 1024 + kStages * (kStageBytes + kScaleBytesA + kScaleBytesB + kTileScaleBytes) +
                                 kConsumers * (4 * kBoxes * kStagingBytes + kTermBytes) +
                                 ((kStages + kNotes) * 2 + kConsumers) * static_cast<int>(sizeof(Barrier)) + kNotes * 64;
  static_assert(kTileM % 64 == 0 && kGroupM % 64 == 0 && kGroupN % 16 == 0 && kGroupN <= 256);
  static_assert(!kSwapped || (kTileM == 128 && kShare == Share::kNothing));
  static_assert(kLoop != Loop::kDirect || kStrips == 1);
  static_assert(kLoop != Loop::kRegisters || (kStrips == 1 && kGroupsM == 2 && kTileScales && (kGroupN == 192 || kGroupN == 256)));
  static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0 && kShared <= 232448);
};

struct ByteParams {
  ByteSchedule schedule;
  ByteOutput out;
  const float* b_scales;      ///< of kBlockTile
  int m, n, k_blocks;         ///< k_blocks: a row of b_scales
  std::int64_t d_group_rows;  ///< of kDepth: rows of D per group
};

/// The sums of a thread.
template <class T>
using ByteSums = typename T::Sum[T::kStrips][T::kCount];

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
  std::byte* staging;
  std::byte* terms_;
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
    staging = tiles + T::kStages * T::kStageBytes;
    terms_ = staging + T::kConsumers * 4 * T::kBoxes * kStagingBytes;
    std::byte* scales = terms_ + T::kConsumers * T::kTermBytes;
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
  __device__ typename T::Terms& terms(int group) const { return *reinterpret_cast<typename T::Terms*>(terms_ + group * T::kTermBytes); }
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
#pragma unroll 1
    for (int block = piece.k_begin; block < piece.k_end; ++block) {
      shared.empty[at.stage].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.stage];
      full.arrive_expecting(T::kCopiedBytes + (T::kScalesOfA && any_row ? 16 : 0));
      if constexpr (T::kCol32) {
        static_assert(T::kShare != Share::kA);
        copy_stripes(shared.a(at.stage), a, row_a, block * 4, full);
      } else if constexpr (T::kShare == Share::kA) {
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
  }
}

/// A tile that was cut into parts: the thread blocks of the cluster lay their sums into shared memory, as rows of D, and each adds up, in
/// the order of the parts, and finishes its share of the rows.
template <class T>
__device__ void finish_share(const ByteParams& p, const BytePiece& piece, const TilePlace& place, const ByteSums<T>& sums,
                             typename T::Sum* tile) {
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
    typename T::Sum total[4] = {};
    for (int part = 0; part < parts; ++part) {
      const float4 more = load_remote(tile + r * kPitch + c, static_cast<std::uint32_t>(part));
      if constexpr (std::is_same_v<typename T::Sum, int>) {
        total[0] += __float_as_int(more.x), total[1] += __float_as_int(more.y);
        total[2] += __float_as_int(more.z), total[3] += __float_as_int(more.w);
      } else {
        total[0] += more.x, total[1] += more.y, total[2] += more.z, total[3] += more.w;
      }
    }
    if (r < rows && c < columns) store_four<T::kSwapped, T::kOuter>(p.out, total, d_row + r, d_column + c, columns - c);
  }
}

/// The factors of one k block, read while the products of the block before it run.
template <class T>
struct BlockFactors {
  /// Columns 0, 64, 128 of the warpgroup and on have factors of their own, or 0 and 128, or all have the same.
  static constexpr int kColumns = T::kTileN == 192 ? 3 : (T::kGroupN == 256 ? 2 : 1);
  float of[T::kStrips][2][kColumns];  ///< of rows t / 4 and t / 4 + 8 of each strip

  /// Of the warpgroup's columns from 64 * strip on.
  static constexpr int column(int strip) { return kColumns == 3 ? strip : (kColumns == 2 ? strip / 2 : 0); }

  __device__ void load(const ByteShared<T>& shared, int stage, int first_row, int group_n, bool early) {
    float tile[3] = {1.0f, 1.0f, 1.0f};
    if constexpr (T::kTileScales) {
      const float* words = shared.tile_scales(stage) + (T::kTileN == 256 && T::kGroupsN == 2 ? group_n : 0);
      tile[0] = words[0];
      if constexpr (kColumns > 1) tile[kColumns - 1] = words[1];
      if constexpr (kColumns == 3) tile[1] = early ? tile[2] : tile[0];
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
struct Consumer {
  using Sum = typename T::Sum;
  using Sums = ByteSums<T>;
  using Position = RingPosition<T::kStages>;

  const ByteShared<T>& shared;
  int lane, warp, group;
  int group_m, group_n;
  int first_row;                   ///< of this thread in the tile
  std::uint32_t first_a, first_b;  ///< words of the operands' descriptors in stage 0
  Position at{};
  unsigned turns = 0;  ///< taken so far; an mbarrier, since the compiler would move a bar.sync above the promotion

  __device__ explicit Consumer(const ByteShared<T>& memory) : shared(memory) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % 32;
    warp = thread % 128 / 32;
    group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // the same in all lanes, and known to be
    group_m = T::kGroupsM == 2 ? group : 0;
    group_n = T::kGroupsN == 2 ? group : 0;
    first_row = group_m * T::kGroupM + warp * 16 + lane / 4;
    first_a = operand_word(shared_address(shared.a(0)) + group_m * T::kGroupM * (T::kCol32 ? 32 : 128));
    first_b = operand_word(shared_address(shared.b(0)) + group_n * T::kGroupN * 128);
  }

  __device__ void release(int stage) const {
    __syncwarp();  // all lanes have read their scales
    if (lane >= T::kCluster) return;
    if constexpr (T::kCluster == 1)
      shared.empty[stage].arrive();
    else
      arrive_remote(shared.empty[stage], static_cast<std::uint32_t>(lane));
  }
  /// Of a stage in descriptors. The same in all lanes, and known to be: descriptors are then computed in uniform registers.
  static __device__ std::uint32_t offset_of(int stage) {
    return __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(stage * (T::kStageBytes / 16)), 0);
  }
  /// Four products, 128 along k; `add` says whether the first adds to what is there.
  template <int kCount>
  __device__ void issue(Sum (&into)[kCount], int stage, int strip, bool add) const {
    const std::uint32_t offset = offset_of(stage), a = first_a + offset + strip * (64 * 128 / 16), b = first_b + offset;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t left = T::kCol32 ? stripe_operand(a + step * (T::kTileM * 32 / 16)) : operand(a + step * 2);
      wgmma<T::kPair>(into, left, operand(b + step * 2), add || step > 0);
    }
    wgmma_commit();
  }

  __device__ void multiply_direct(Sums& sums, int blocks) {
    shared.full[at.stage].wait(at.parity);
    pin(sums[0]);
    issue(sums[0], at.stage, 0, false);
    for (int block = 1; block < blocks; ++block) {
      Position next = at;
      next.advance();
      shared.full[next.stage].wait(next.parity);
      issue(sums[0], next.stage, 0, true);
      wgmma_wait<1>();
      release(at.stage);
      at = next;
    }
    wgmma_wait<0>();
    pin(sums[0]);
    release(at.stage);
    at.advance();
  }

  // Issue and wait stand in straight lines, without conditions: else the compiler serialises the products.
  __device__ void multiply_pipelined(Sums& sums, int blocks, int scale_row, bool early) {
    float accumulators[2][T::kCount];
    BlockFactors<T> factors[2];
    const auto start = [&](float(&into)[T::kCount], BlockFactors<T>& its, const Position& where) {
      shared.full[where.stage].wait(where.parity);
      pin(into);
      issue(into, where.stage, 0, false);
      its.load(shared, where.stage, scale_row, group_n, early);
    };
    const auto promote = [&](float(&from)[T::kCount], const BlockFactors<T>& its) {
      pin(from);
#pragma unroll
      for (int i = 0; i < T::kCount; ++i)
        sums[0][i] = T::kOuter ? sums[0][i] + from[i] : __fmaf_rn(from[i], its.of[0][i / 2 % 2][0], sums[0][i]);
    };
    const auto step = [&](float(&now)[T::kCount], const BlockFactors<T>& its, float(&then)[T::kCount], BlockFactors<T>& next_its) {
      Position next = at;
      next.advance();
      start(then, next_its, next);
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
    start(accumulators[0], factors[0], at);
    for (; blocks > 2; blocks -= 2) {
      step(accumulators[0], factors[0], accumulators[1], factors[1]);
      step(accumulators[1], factors[1], accumulators[0], factors[0]);
    }
    if (blocks == 2) {
      step(accumulators[0], factors[0], accumulators[1], factors[1]);
      finish(accumulators[1], factors[1]);
    } else {
      finish(accumulators[0], factors[0]);
    }
  }

  /// Strips of 64 columns take the sets of accumulators in turn. The last strip of a block is promoted under the first one of the next.
  __device__ void multiply_from_registers(Sums& sums, int blocks, int scale_row, bool early) {
    constexpr int kStripsN = T::kGroupN / 64, kSets = kStripsN == 3 ? 3 : 2, kLast = kStripsN - 1;
    float accumulators[kSets][32];
    BlockFactors<T> factors;
    float before[2] = {0.0f, 0.0f};  // factors of the block before, of its last strip
#pragma unroll
    for (int i = 0; i < 32; ++i) accumulators[kLast % kSets][i] = 0.0f;
    const int row = lane % 16;
    const std::uint32_t fragments = shared_address(shared.a(0)) + (group_m * T::kGroupM + warp * 16 + row) * 128;
    const auto promote = [&](float(&from)[32], float low, float high, float* to) {
      pin(from);
#pragma unroll
      for (int i = 0; i < 32; ++i) to[i] = __fmaf_rn(from[i], i / 2 % 2 == 0 ? low : high, to[i]);
    };
    for (int block = 0; block < blocks; ++block) {
      shared.full[at.stage].wait(at.parity);
      std::uint32_t a[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step)
        load_matrices(fragments + at.stage * T::kStageBytes + ((step * 2 + lane / 16) ^ (row % 8)) * 16, a[step]);
      factors.load(shared, at.stage, scale_row, 0, early);
      const std::uint32_t b = first_b + offset_of(at.stage);
#pragma unroll
      for (int strip = 0; strip < kStripsN; ++strip) {
        float(&into)[32] = accumulators[strip % kSets];
        pin(into);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma<T::kPair>(into, a[step], operand(b + strip * (64 * 128 / 16) + step * 2), step > 0);
        wgmma_commit();
        wgmma_wait<1>();  // strip 0: of nothing, but without it the compiler waits for everything
        if (strip == 0) {
          promote(accumulators[kLast % kSets], before[0], before[1], sums[0] + kLast * 32);
        } else {
          const int done = strip - 1, column = BlockFactors<T>::column(done);
          promote(accumulators[done % kSets], factors.of[0][0][column], factors.of[0][1][column], sums[0] + done * 32);
        }
      }
      before[0] = factors.of[0][0][BlockFactors<T>::column(kLast)];
      before[1] = factors.of[0][1][BlockFactors<T>::column(kLast)];
      wgmma_wait<0>();
      release(at.stage);
      at.advance();
    }
    promote(accumulators[kLast % kSets], before[0], before[1], sums[0] + kLast * 32);
  }

  __device__ void multiply_in_strips(Sums& sums, int blocks, int scale_row, bool early) {
    BlockFactors<T> factors;
    shared.full[at.stage].wait(at.parity);
    factors.load(shared, at.stage, scale_row, group_n, early);
    for (; blocks > 0; --blocks) {
      Position next = at;
      next.advance();
      BlockFactors<T> next_factors = factors;
#pragma unroll
      for (int strip = 0; strip < T::kStrips; ++strip) {
        constexpr int kLast = T::kStrips - 1;
        float accumulators[T::kCount];
        if constexpr (T::kLoop == Loop::kTurns) shared.turn[group].wait(turns++);
        pin(accumulators);
        issue(accumulators, at.stage, strip, false);
        if (T::kLoop == Loop::kTurns && lane == 0) shared.turn[group ^ 1].arrive();

        float column_scale[T::kScalesOfB ? T::kCount / 2 : 1];
        if constexpr (T::kScalesOfB) {
#pragma unroll
          for (int i = 0; i < T::kCount / 4; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(shared.b_scales(at.stage) + group_n * T::kGroupN + i * 8 + lane % 4 * 2);
            column_scale[2 * i] = two.x;
            column_scale[2 * i + 1] = two.y;
          }
        }
        if (strip == kLast && blocks > 1) {
          shared.full[next.stage].wait(next.parity);
          next_factors.load(shared, next.stage, scale_row, group_n, early);
        }
        wgmma_wait<0>();
        pin(accumulators);
        if (strip == kLast) release(at.stage);
#pragma unroll
        for (int i = 0; i < T::kCount; ++i) {  // promotion
          const float factor = factors.of[strip][i / 2 % 2][BlockFactors<T>::column(i / 32)];
          float& sum = sums[strip][i];
          if constexpr (T::kOuter)
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
  }
};

/// Where a warpgroup's part of a tile lies. Row and column scales: every group has its own rows of A, and its own matrix of B; groups along
/// k share them.
template <class T>
__device__ StripPlace place_of_group(const ByteParams& p, const BytePiece& piece, const TilePlace& place, int group) {
  const int row = place.row + (T::kGroupsM == 2 ? group : 0) * T::kGroupM,
            column = place.column + (T::kGroupsN == 2 ? group : 0) * T::kGroupN;
  const bool along_k = p.schedule.grouping == ByteGrouping::kDepth;
  return {(along_k ? piece.group * p.d_group_rows : piece.first_row) + row, piece.rows - row, column, std::int64_t{piece.first_row} + row,
          along_k ? 0 : static_cast<std::int64_t>(piece.group) * p.n};
}

/// The sums of a tile to D, box by box (`boxes` so far) through the warp's staging memory, which earlier stores may still be reading.
template <class T>
__device__ void finish_tile(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared, const ByteSums<T>& sums,
                            const BytePiece& piece, const TilePlace& place, unsigned& boxes) {
  const int here = thread_here(), lane = here % 32, warp = here % 128 / 32, group = here / 128;
  std::byte* const staging = shared.staging + (group * 4 + warp) * T::kBoxes * kStagingBytes;
  const StripPlace part = place_of_group<T>(p, piece, place, group);
#pragma unroll
  for (int strip = 0; strip < T::kStrips; ++strip) {
    const int first = strip * 64 + warp * 16, rows = part.rows - first;
    if constexpr (T::kSwapped) {
      store_transposed<T::kOuter>(p.out, sums[strip], static_cast<int>(part.row) + first, rows, part.column, staging);
    } else if (!p.out.boxed) {
      store_any<T::kOuter>(p.out, sums[strip], {part.row + first, rows, part.column, part.a + first, part.b}, staging);
    } else {
      // Boxes of at most 128 bytes in a row, kSums of a thread's sums at a time.
      const auto put = [&]<int kElementBytes>(std::integral_constant<int, kElementBytes>) {
        constexpr int kSums = std::min(T::kCount, 64 / kElementBytes);
        const bool copied = kSums * 2 * kElementBytes == 128 && !p.out.col32 && (rows >= 16 || p.out.rows_end_with_d);
#pragma unroll
        for (int from = 0; from < T::kCount; from += kSums) {
          std::byte* const box = staging + boxes++ % T::kBoxes * kStagingBytes;
          const int column = part.column + from * 2;
          float v[kSums];
          finish_sums(p.out, shared.terms(group), sums[strip] + from, v, first + lane / 4, from * 2 + lane % 4 * 2);
          if (lane == 0) wait_stores_read<T::kBoxes - 1>();
          __syncwarp();
          if constexpr (kElementBytes == 4) stage_32_bit(v, box);
          else if constexpr (kElementBytes == 2) stage_16_bit(p.out, v, box);
          else stage_8_bit(p.out, v, box);
          if (copied) fence_shared_for_copies();
          __syncwarp();
          if (!copied) store_box<kElementBytes, kSums * 2>(p.out, part.row + first, rows, column, box);
          else if (lane == 0) copy_box_out(d, column, static_cast<int>(part.row) + first, box);
          if (lane == 0) commit_stores();
        }
      };
      const DType out = p.out.epilogue.out;
      if (out == DType::kF16 || out == DType::kBf16) put(std::integral_constant<int, 2>());
      else if (out == DType::kF32 || out == DType::kI32) put(std::integral_constant<int, 4>());
      else if constexpr (T::kCount % 64 == 0) put(std::integral_constant<int, 1>());
    }
  }
}

/// A consumer warpgroup's work.
template <class T>
__device__ void consume(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared) {
  Consumer<T> consumer(shared);
  const int lane = consumer.lane, group = consumer.group;
  if (T::kLoop == Loop::kTurns && group == 1 && lane == 0) shared.turn[0].arrive();
  RingPosition<T::kNotes> note;
  const bool needs_terms = !T::kSwapped && p.out.boxed && p.schedule.parts == 1 && (T::kOuter || p.out.epilogue.bias != nullptr);
  const int barrier = 2 + group;
  unsigned boxes = 0;
  wait_for_earlier_kernels();  // from here on scales are read and D is written; the producer has waited before the operands are read
  for (bool begin = true;; begin = false) {
    shared.noted[note.stage].wait(note.parity);
    const PieceNote& told = shared.notes[note.stage];
    if (told.last) break;
    const BytePiece& piece = told.piece;
    const TilePlace& place = told.place;
    if constexpr (!T::kSwapped) {
      if (needs_terms) {
        if (!begin) named_sync(barrier, 128);  // the terms of the tile before are read
        const StripPlace part = place_of_group<T>(p, piece, place, group);
        shared.terms(group).start(p.out, thread_here() % 128, part.column, part.a, part.rows, part.b + part.column);
      }
    }
    const int scale_row = consumer.first_row + (p.schedule.grouping == ByteGrouping::kRowOffsets ? piece.first_row % 4 : 0);
    const bool early = T::kTileN == 192 && place.column % 128 != 0;  // the second block of columns begins at column 64, not 128
    const int blocks = piece.k_end - piece.k_begin;
    ByteSums<T> sums;
#pragma unroll
    for (int i = 0; i < T::kStrips * T::kCount; ++i) sums[i / T::kCount][i % T::kCount] = 0;
    if (blocks > 0) {
      if constexpr (T::kLoop == Loop::kDirect)
        consumer.multiply_direct(sums, blocks);
      else if constexpr (T::kLoop == Loop::kPipelined)
        consumer.multiply_pipelined(sums, blocks, scale_row, early);
      else if constexpr (T::kLoop == Loop::kRegisters)
        consumer.multiply_from_registers(sums, blocks, scale_row, early);
      else
        consumer.multiply_in_strips(sums, blocks, scale_row, early);
    }
    if (T::kCluster == 1 && p.schedule.parts > 1) {
      finish_share<T>(p, piece, place, sums, reinterpret_cast<typename T::Sum*>(shared.tiles));
    } else {
      if (needs_terms) {
        wait_words();
        named_sync(barrier, 128);
      }
      finish_tile<T>(p, d, shared, sums, piece, place, boxes);
    }
    __syncwarp();  // the note is read
    if (lane == 0) shared.read[note.stage].arrive();
    note.advance();
  }
  if (lane == 0) wait_stores_read<0>();
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
    if (p.out.boxed) prefetch_map(d);
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
