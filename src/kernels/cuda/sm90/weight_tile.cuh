#pragma once
/// What the parts of the product with prepared weights share: what is known when it is compiled and when it runs, its shared memory, and
/// who works on what.

#include <algorithm>

#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/weight_decode.cuh"
#include "kernels/cuda/weight_finish.cuh"

namespace narrow::cuda::sm90 {

/// Where the scales of tiles of many tokens enter.
enum class ScaleMode : std::uint8_t {
  kRows,   ///< they do not change along k
  kFold,   ///< into the decoded values: their products with codes, and with the row's fold, are exact in 16 bits
  kChunk,  ///< one per chunk: sums are kept in its unit, and change it with the chunk
  kInside  ///< any: accumulators of the columns of a scale are promoted
};

/// What a kernel is told at run time.
struct WeightParams {
  const std::uint8_t* chunks;
  const float* factors;
  int m, n;
  int row_chunks, depth_chunks, chunk_bytes;
  int scale_offset, zero_offset;  ///< inside a chunk; zero_offset 0: none
  ChunkScale scale;
  int step, step_shift;  ///< columns that share a scale, and their logarithm
  ScaleMode mode;        ///< of tiles of 64 tokens and more
  int integer_offset;    ///< of signed integers: 2^(bits-1)
  std::uint32_t shift, magnitude;
  int row_tiles, token_tiles, band, workers, parts;
  int weight_slots, token_slots;
  /// Where every thread block has an even share of all chunks, tile after tile, and tiles are shared along k: memory for the sums of its
  /// first piece, if that does not begin a tile, [thread block][row group][sums], and words that become `nonce` when they are there; else
  /// null.
  float4* partials;
  unsigned long long *partials_there, nonce;
  bool box_stores;  ///< y is stored in boxes of 64 columns x 32 rows
  // Streams (weight_stream.cuh), whose slots are weight_slots:
  bool plain_stores;               ///< 16-bit y, nothing added to it
  int grain, grains, more_grains;  ///< groups of 32 rows that are dealt together; of them each thread block's, and how many have one more
  int wide, wide_shift, depth;     ///< groups of a tile, their logarithm, and chunks along k of a unit: 8 / wide
  int slot_bytes;                  ///< four chunks
  int box_rows, token_bytes;       ///< rows of x in a slot, and their bytes
  WeightEpilogue epilogue;
  void* y;
  std::int64_t y_pitch;
};

/// What is known when a kernel is compiled.
template <class Decoder_, bool kBf16_, int kTokens_, int kRowGroups_ = 2, bool kPromotes_ = false, int kDepthGroups_ = 1>
struct WeightTile {
  using Decode = Decoder_;
  static constexpr bool kBf16 = kBf16_;
  static constexpr int kTokens = kTokens_, kRowGroups = kRowGroups_, kBits = Decode::kBits;
  static constexpr int kDepthGroups = kDepthGroups_;  ///< of warpgroups: they take chunks along k in turn, and add up at the end
  static constexpr bool kInTurn = kRowGroups * kDepthGroups == 4;  ///< four warpgroups, which decode and multiply in turn
  static constexpr int kConsumerThreads = kRowGroups * kDepthGroups * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kCount = kTokens / 2;     ///< accumulators of a thread
  static constexpr bool kPromotes = kPromotes_;  ///< takes ScaleMode::kInside, and nothing else
  static constexpr int kTokenDepth = kInTurn || (kTokens == 128 && kRowGroups == 2) ? kChunkDepth : 64;  ///< of a slot of tokens
  static constexpr int kTokenBytes = kTokens * kTokenDepth * 2;
  static constexpr int kStorePieces = std::max(1, kTokens / 64);                ///< of 32 tokens x 64 columns that leave together
  static constexpr int kGroupStoreBytes = std::max(kStorePieces * 4096, 8192);  ///< of a warpgroup; 8192: a piece in fp32
  static constexpr int kStoreBytes = kRowGroups * kGroupStoreBytes;
  static constexpr int kPartialBytes = kTokens * 64 * 4;  ///< a warpgroup's sums
  static constexpr int kEntryRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kRowGroups * kDepthGroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = (kEntryRegisters * kThreads - kProducerRegisters * 128) / kConsumerThreads / 8 * 8;
  static_assert(kConsumerRegisters * kConsumerThreads + kProducerRegisters * 128 <= kEntryRegisters * kThreads);

  /// Tiles of 256 tokens in two parts are exchanged through the slots.
  static constexpr bool kExchanges = kTokens == 256;
  static constexpr int partial_slots(int parts) { return kExchanges ? 0 : parts - 1; }
  static constexpr int shared_bytes(int weight_slots, int token_slots, int chunk_bytes, int parts) {
    return 1024 + token_slots * kTokenBytes + kStoreBytes + weight_slots * kRowGroups * chunk_bytes +
           partial_slots(parts) * kRowGroups * kPartialBytes + (2 * (weight_slots + token_slots) + 3 * kRowGroups) * 8;
  }
};

template <class T>
struct WeightShared {
  std::byte *tokens, *stores, *weights, *partials;
  Barrier *weights_full, *weights_empty, *tokens_full, *tokens_empty;
  Barrier *partials_full, *partials_read;  ///< one per row group; of the first thread block, and of each
  Barrier* turn;                           ///< one per row group: its products of another chunk are issued

  __device__ WeightShared(std::byte* memory, const WeightParams& p) {
    tokens = memory + (1024 - shared_address(memory) % 1024) % 1024;
    stores = tokens + p.token_slots * T::kTokenBytes;
    weights = stores + T::kStoreBytes;
    partials = weights + p.weight_slots * T::kRowGroups * p.chunk_bytes;
    weights_full = reinterpret_cast<Barrier*>(partials + T::partial_slots(p.parts) * T::kRowGroups * T::kPartialBytes);
    weights_empty = weights_full + p.weight_slots;
    tokens_full = weights_empty + p.weight_slots;
    tokens_empty = tokens_full + p.token_slots;
    partials_full = weights_empty + p.weight_slots + 2 * p.token_slots;
    partials_read = partials_full + T::kRowGroups;
    turn = partials_read + T::kRowGroups;
  }
};

/// A place in a ring whose length is known at run time.
struct RingPlace {
  int slot = 0;
  unsigned parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1u;
  }
  /// By several places, no more than there are slots.
  __device__ void advance(int slots, int by) {
    slot += by;
    if (slot >= slots) slot -= slots, parity ^= 1u;
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

/// Some chunks of a tile along k.
struct WeightPiece {
  int tile, begin, count;
};

/// What a worker does, piece after piece: tiles in turn, whole or the part of this thread block of a cluster; or an even share of all
/// chunks. Shares are dealt from the last thread block on, so that one waits only for those that started before it.
class WeightWork {
 public:
  __device__ WeightWork(const WeightParams& params, int worker, int rank) : p(params), tiles(params.row_tiles * params.token_tiles) {
    if (p.partials != nullptr) {
      at = share_begin(p, worker);
      end = share_begin(p, worker + 1);
    } else {
      at = worker;
      begin = p.depth_chunks * rank / p.parts;
      count = p.depth_chunks * (rank + 1) / p.parts - begin;
    }
  }
  __device__ bool next(WeightPiece& piece) {
    if (p.partials == nullptr) {
      if (at >= tiles) return false;
      piece = {at, begin, count};
      at += p.workers;
      return true;
    }
    if (at >= end) return false;
    const int tile = at / p.depth_chunks, first = at - tile * p.depth_chunks;
    piece = {tile, first, min(p.depth_chunks - first, end - at)};
    at += piece.count;
    return true;
  }
  /// Whether next() gives no other piece.
  __device__ bool is_done() const { return at >= (p.partials == nullptr ? tiles : end); }
  /// The first chunk, counted through all tiles, of a worker's share.
  __device__ static int share_begin(const WeightParams& p, int worker) {
    return static_cast<int>(std::int64_t{p.row_tiles * p.token_tiles} * p.depth_chunks * worker / p.workers);
  }

 private:
  const WeightParams& p;
  int tiles, at, end = 0, begin = 0, count = 0;
};

}  // namespace narrow::cuda::sm90
