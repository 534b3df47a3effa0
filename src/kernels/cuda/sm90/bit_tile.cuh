#pragma once
/// What the main loop of products of bits knows when it is compiled, and its shared memory.

#include <algorithm>

#include "kernels/cuda/bit_product.h"
#include "kernels/cuda/sm90/output_box.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/ring.cuh"

namespace narrow::cuda::sm90 {

/// A tile of 128 x kTileN: two consumer warpgroups of 64 rows, one producer. A block along k is 128 bytes, 1024 bits, of a row.
template <int kTileN_, int kStages_, int kCluster_>
struct BitTile {
  static constexpr int kTileM = 128, kTileN = kTileN_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;  ///< together 3 * 168 of every 128 threads
  static constexpr int kCount = kTileN / 2;                                ///< sums of a thread
  static constexpr int kBytesA = kTileM * 128, kBytesB = kTileN * 128, kStageBytes = kBytesA + kBytesB;
  static constexpr int kBoxBytes = kOutputBoxBytes;  ///< a warp stages one box of D, 16 rows, at a time
  static constexpr int kTerms = 2;                   ///< tiles whose terms are there at once
  static constexpr int kTermBytes = (kTileM + kTileN) * static_cast<int>(sizeof(BitTerm));
  static constexpr int kShared = 1024 + kStages * kStageBytes + kConsumers * 4 * kBoxBytes + kTerms * kTermBytes +
                                 (2 * kStages + 2 * kTerms + kConsumers) * static_cast<int>(sizeof(Barrier));
  static_assert(kTileN % 64 == 0 && kTileN <= 256 && kShared <= 232448);
};

/// A launch. A worker is a thread block, or a cluster of two that lie one above the other and share B.
struct BitParams {
  int m, n, k, blocks;                   ///< blocks along k
  int tiles_m, tiles_n, tiles, workers;  ///< in units of a worker's tile
  int band;                              ///< tiles along m that neighbouring tile numbers walk through first, for the second-level cache
  int chunk;   ///< blocks along k that a warpgroup multiplies before the other one has its turn; at most the stages
  bool boxed;  ///< D leaves by tensor copies: aligned rows, nothing but scales in the epilogue
  const BitTerm* a_terms;
  const BitTerm* b_terms;
  ByteEpilogue epilogue;
  void* d;
  std::int64_t pitch;
};

/// The thread block's shared memory.
template <class T>
struct BitShared {
  std::byte* tiles;
  std::byte* staging;
  std::byte* terms;
  Barrier* full;
  Barrier* empty;
  Barrier* terms_full;
  Barrier* terms_empty;
  Barrier* turn;  ///< [warpgroup]

  __device__ explicit BitShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    terms = staging + T::kConsumers * 4 * T::kBoxBytes;
    full = reinterpret_cast<Barrier*>(terms + T::kTerms * T::kTermBytes);
    empty = full + T::kStages;
    terms_full = empty + T::kStages;
    terms_empty = terms_full + T::kTerms;
    turn = terms_empty + T::kTerms;
  }
  __device__ std::byte* a(int stage) const { return tiles + stage * T::kStageBytes; }
  __device__ std::byte* b(int stage) const { return tiles + stage * T::kStageBytes + T::kBytesA; }
  __device__ BitTerm* row_terms(int slot) const { return reinterpret_cast<BitTerm*>(terms + slot * T::kTermBytes); }
  __device__ BitTerm* column_terms(int slot) const { return row_terms(slot) + T::kTileM; }
};

/// The first row and column of D of this thread block's part of a tile: bands of `band` tiles along m, and inside a band m first.
template <class T>
__device__ inline int2 place_of_bits(const BitParams& p, int tile, int rank) {
  const int per_band = p.band * p.tiles_n, which = tile / per_band, first = which * p.band, inside = tile - which * per_band;
  const int height = min(p.tiles_m - first, p.band);
  return {((first + inside % height) * T::kCluster + rank) * T::kTileM, inside / height * T::kTileN};
}

}  // namespace narrow::cuda::sm90
