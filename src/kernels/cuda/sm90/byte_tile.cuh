#pragma once
/// What the main loop of one-byte products knows when it is compiled, and its shared memory.

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "kernels/cuda/sm90/byte_epilogue.cuh"
#include "kernels/cuda/sm90/byte_schedule.cuh"
#include "kernels/cuda/sm90/elect.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace narrow::cuda::sm90 {

/// What the two thread blocks of a cluster have in common: side by side they share A, one below the other B.
enum class Share : std::uint8_t { kNothing, kA, kB };

enum class TileForm : std::uint8_t {
  kPlain,
  kSwapped,   ///< few rows: the weights take wgmma's 64 rows, the rows of A its columns; D is stored transposed. Of 64 weights as kDeep
  kCol32,     ///< A lies in stripes of 32 columns
  kDeep,      ///< 64 rows: the warpgroups take every other k block instead of half of the columns, so that each wgmma is twice as wide
  kPingPong,  ///< each warpgroup has whole tiles of its own; they multiply in turn, and one finishes its tile under the other's products
  kPingPongCol32,  ///< and A lies in stripes
};

/// How a warpgroup multiplies.
enum class Loop : std::uint8_t {
  kDirect,     ///< the accumulators are the sums
  kPipelined,  ///< two sets of accumulators: the products of the next k block run while this one's are promoted
  kTurns,      ///< one set; the two warpgroups multiply in turn, so that one's products run while the other promotes
  kFree,       ///< one set; the warpgroups drift apart by themselves, and one's products run while the other promotes
  kAlternate,  ///< each warpgroup multiplies the whole tile in every other k block, with two sets; at the end they exchange halves
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
  static constexpr bool kSwapped = kForm == TileForm::kSwapped, kOuter = is_outer(kScaling);
  static constexpr bool kCol32 = kForm == TileForm::kCol32 || kForm == TileForm::kPingPongCol32;
  static constexpr bool kPingPong = kForm == TileForm::kPingPong || kForm == TileForm::kPingPongCol32;
  static constexpr bool kDeep = kForm == TileForm::kDeep || (kSwapped && kTileM == 64);
  using Sum = std::conditional_t<kPair == BytePair::kS8S8, int, float>;
  static constexpr int kClusterM = kShare == Share::kB ? 2 : 1, kClusterN = kShare == Share::kA ? 2 : 1, kCluster = kClusterM * kClusterN;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128;
  static constexpr int kTileGroups = kPingPong ? 1 : kConsumers;                                       ///< warpgroups that share a tile
  static constexpr int kGroupsM = kTileM >= 128 ? kTileGroups : 1, kGroupsN = kTileGroups / kGroupsM;  ///< along m and n
  static constexpr int kGroupM = kTileM / kGroupsM, kGroupN = kTileN / kGroupsN;                       ///< a warpgroup's part
  static constexpr int kStrips = kGroupM / 64;  ///< products of 64 rows that it computes one after the other
  static constexpr int kCount = kGroupN / 2;    ///< sums of a thread and strip
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kBytesA = kTileM * kTileK, kBytesB = kTileN * kTileK;
  static constexpr bool kTileScales = kScaling == ByteScaling::kBlockTile;   ///< scales of 128x128 tiles of the weights
  static constexpr bool kScalesOfA = !kOuter && !(kTileScales && kSwapped);  ///< 1x128 scales of the left operand
  static constexpr bool kScalesOfB = kScaling == ByteScaling::kBlockBlock || (kTileScales && kSwapped);  ///< and of the right one
  static constexpr int kScaleBytesA = kScalesOfA ? kTileM * 4 + 128 : 0, kScaleBytesB = kScalesOfB ? (kTileN * 4 + 127) / 128 * 128 : 0;
  static constexpr int kTileScaleBytes = kTileScales ? 16 : 0;
  static constexpr int kTileScaleWords = !kSwapped && 128 % kTileN != 0 ? 2 : 1;  ///< blocks of 128 columns that a tile touches
  static constexpr int kLoopN = kDeep ? kTileN : kGroupN;                         ///< columns that a warpgroup multiplies
  /// Of these, so many have the same scale of the weights wherever a tile begins; and how many times as many there are.
  static constexpr int kScaleStep = std::gcd(kLoopN, 128), kScaleColumns = kLoopN / kScaleStep;
  static constexpr Loop kLoop = kDeep                                                             ? Loop::kAlternate
                                : kPair == BytePair::kS8S8 || kScaling == ByteScaling::kOuterFast ? Loop::kDirect
                                : kStrips == 1 && kCount <= 32 && !kScalesOfB                     ? Loop::kPipelined
                                : kStrips == 1 && kCount >= 64 && kScalesOfB                      ? Loop::kTurns
                                                                                                  : Loop::kFree;
  /// Large promoted tiles of e4m3 are faster where copies start with pauses between them: from two producers, each of which fills every
  /// other stage, that are not elected. Small tiles would wait for them; 1x128 x 1x128 and the other formats have not been compared.
  static constexpr bool kSpacedCopies = kLoop == Loop::kFree && kPair == BytePair::kE4m3E4m3 && kTileM >= 128 && kTileN > 64;
  /// Large integer tiles of both warpgroups, one for each thread block, so that nothing hides their end: one warpgroup is kBehind k blocks
  /// behind the other there, and finishes under its products. They must all have room in the ring.
  static constexpr bool kLone = kPair == BytePair::kS8S8 && !kPingPong && kTileM == 128 && kTileN > 128;
  static constexpr int kBehind = kLone ? kStages - 1 : 0;
  /// Whether a strip's factors are multiplied when its products have been started, and not where the block's scales are read: then nothing
  /// stands between a promotion and the next products. Of 128x192, with one strip, it was no faster.
  static constexpr bool kLateFactors = kTileScales && kStrips > 1;
  /// k blocks in straight code: four of small blocks; of 128x192 fetching the code costs short products as much as it gains the others.
  static constexpr int kBlocksTogether = kStrips == 1 && kCount <= 64 ? 4 : 1;
  static constexpr unsigned kProducers = kSpacedCopies ? 2 : 1;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  /// Whether boxes of A have no more rows than there are, where all are in one tile: rows outside of a matrix take time too.
  static constexpr bool kFewRowsOfA = kPair == BytePair::kS8S8 && !kSwapped && !kCol32;
  static constexpr bool kMayOverlap = kPair == BytePair::kS8S8 && !kSwapped;
  static constexpr int kCopiedBytes = kStageBytes + (kScalesOfA ? kTileM * 4 : 0) + (kScalesOfB ? kTileN * 4 : 0);
  static constexpr int kNotes = 4;  ///< pieces that the scheduler may be ahead of the consumers
  using Terms = TileTerms<kGroupM, kGroupN, kOuter, std::is_same_v<Sum, int>>;
  static constexpr int kTermBytes = kSwapped ? 0 : (static_cast<int>(sizeof(Terms)) + 127) / 128 * 128;  ///< of a warpgroup
  /// Boxes of D that a warp has staged at once: a tile of 16-bit values, whose stores then run under the next tile's products. Of kPingPong
  /// two, since all of a tile's end does, and of 240 columns, which are for one tile per thread block.
  static constexpr int kBoxes = kSwapped ? 1 : kPingPong || kTileN == 240 ? 2 : (kStrips * kGroupN + 63) / 64;
  /// Whether bytes of D leave in boxes, of 128 columns: of 128 rows, but not where tiles of 192 are promoted. Of integers always.
  static constexpr bool kByteBoxes =
      kPair == BytePair::kS8S8 || (kTileM >= 128 && kCount >= 64 && (kCount % 64 == 0 || kLoop == Loop::kDirect));
  /// Whether a tile can be cut into parts along k: two, of at most 64x64 three. The sums that other parts send take the staging memory.
  static constexpr bool kParts =
      kCluster == 1 && kTileGroups == kConsumers && kStrips == 1 && kTileN <= 128 && (kCount <= 32 || (kTileScales && kCount == 64));
  static constexpr int kPartBytes = kStrips * kCount * 4 * 128;  ///< that one warpgroup sends another
  static constexpr int kSentBytes = kParts ? (kCount > 16 ? 1 : 2) * kPartBytes : 0;
  /// Whether a thread of its own, the storer, can start the stores of large tiles: the copies' unit takes a tile of 16-bit values in about
  /// 1,300 cycles, and whoever starts the stores waits for that. Of int8 and of promoted outer scales it was no faster.
  static constexpr bool kStorer = kBoxes > 1 && kTileScales;
  /// Sums of one half of the tile that each warpgroup of kAlternate gives the other.
  static constexpr int kExchangeBytes = kDeep ? kConsumerThreads * kCount * 4 : 0;
  static constexpr int kStaging = std::max(kSentBytes, kConsumers * 4 * kBoxes * kStagingBytes);  ///< a tile is staged, or sent in parts
  static constexpr int kBarriers = (kStages + kNotes) * 2 + kConsumers * 3 + (kParts ? 1 : 0);
  static constexpr int kShared = 1024 + kStages * (kStageBytes + kScaleBytesA + kScaleBytesB + kTileScaleBytes) + kStaging +
                                 kExchangeBytes + kConsumers * kTermBytes + kBarriers * static_cast<int>(sizeof(Barrier)) + kNotes * 64;
  static_assert(kTileM % 64 == 0 && kGroupM % 64 == 0 && kGroupN % 8 == 0 && kGroupN <= 256);
  static_assert(!kDeep || kTileM == 64);
  static_assert(!(kDeep || kSwapped) || kShare == Share::kNothing);
  static_assert(!kPingPong || kLoop == Loop::kDirect);
  static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0 && kShared <= 232448);
};

struct ByteParams {
  ByteSchedule schedule;
  ByteOutput out;
  const float* b_scales;      ///< of kBlockTile
  int m, n, k_blocks;         ///< k_blocks: a row of b_scales
  std::int64_t d_group_rows;  ///< of kDepth: rows of D per group
  int a_line_shift;           ///< of kCol32: log2 of the rows of A that its map takes for one line
};

/// The sums of a thread.
template <class T>
using ByteSums = typename T::Sum[T::kStrips][T::kCount];

/// Where a thread block's part of a piece lies.
struct TilePlace {
  int row, column;  ///< inside the group
};

/// What the scheduler tells the other threads of its thread block about a piece; consumers read it where they need it, so that it takes no
/// registers.
struct PieceNote {
  BytePiece piece;
  TilePlace place;
  int blocks_before;  ///< of kPingPong: k blocks of the pieces before
  bool last;          ///< no piece: the end
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
  Barrier* staged;  ///< of a warpgroup: its results lie in the staging memory
  Barrier* stored;  ///< of a warpgroup: and have been read
  Barrier* sent;
  float4* sent_fours;
  float4* exchange;
  PieceNote* notes;

  __device__ explicit ByteShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    sent_fours = reinterpret_cast<float4*>(staging);
    exchange = reinterpret_cast<float4*>(staging + T::kStaging);
    terms_ = staging + T::kStaging + T::kExchangeBytes;
    std::byte* scales = terms_ + T::kConsumers * T::kTermBytes;
    scales_a = reinterpret_cast<float*>(scales);
    scales_b = reinterpret_cast<float*>(scales + T::kStages * T::kScaleBytesA);
    scales_tile = reinterpret_cast<float*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB));
    full = reinterpret_cast<Barrier*>(scales + T::kStages * (T::kScaleBytesA + T::kScaleBytesB + T::kTileScaleBytes));
    empty = full + T::kStages;
    noted = empty + T::kStages;
    read = noted + T::kNotes;
    turn = read + T::kNotes;
    staged = turn + T::kConsumers;
    stored = staged + T::kConsumers;
    sent = stored + T::kConsumers;
    notes = reinterpret_cast<PieceNote*>(sent + (T::kParts ? 1 : 0));
  }
  /// Where warp `warp` of all consumers stages its box number i.
  __device__ std::byte* box(int warp, int i) const { return staging + (warp * T::kBoxes + i) * kStagingBytes; }
  __device__ std::byte* a(int stage) const { return tiles + stage * T::kStageBytes; }
  __device__ std::byte* b(int stage) const { return tiles + stage * T::kStageBytes + T::kBytesA; }
  __device__ typename T::Terms& terms(int group) const { return *reinterpret_cast<typename T::Terms*>(terms_ + group * T::kTermBytes); }
  __device__ float* a_scales(int stage) const { return scales_a + stage * (T::kScaleBytesA / 4); }
  __device__ float* b_scales(int stage) const { return scales_b + stage * (T::kScaleBytesB / 4); }
  __device__ float* tile_scales(int stage) const { return scales_tile + stage * (T::kTileScaleBytes / 4); }
};

/// The first half of cluster_sync, without what was written before, but for barriers that fence_barriers made known; and the second one.
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/// A place in the ring of stages.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;
  /// By at most kStages.
  __device__ void advance(int steps = 1) {
    stage += steps;
    if (stage >= kStages) stage -= kStages, parity ^= 1u;
  }
  /// By any number.
  __device__ void advance_far(int steps) {
    const int to = stage + steps;
    parity ^= static_cast<unsigned>(to / kStages) & 1u;
    stage = to % kStages;
  }
};

}  // namespace narrow::cuda::sm90
