#pragma once
/// Which tiles, and which part of k of each, every worker of an fp8 product computes. A worker is a thread block, or a cluster of them.
///
/// Whole tiles are dealt in turn. The other tiles are laid end to end along k and cut into equal ranges, one per worker, so that no
/// multiprocessor waits while others work on a last, half-empty round. A worker's range may start inside a tile: that piece is a
/// contribution, which goes to memory first of all; the tile belongs to the worker that has its beginning, which computes it last and
/// adds the contributions in order. So nobody waits long, sums have one order, and every worker contributes to one tile at most.
///
/// Where there are far fewer tiles than workers, every tile is cut into the same number of parts, one per thread block of a cluster; all of
/// them put their sums into shared memory, and each adds up, in order, and finishes its share of the tile.

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/fp8_product.h"

namespace narrow::cuda::sm90 {

struct Fp8Schedule {
  int tiles_m, tiles_n;    ///< of one group, in units of a worker's tile; of kRowOffsets and kRowCounts tiles_m is unused
  int k_blocks;            ///< of one group; of kDepth unused
  int workers;
  int tiles;               ///< of kNone and kDepth
  int whole_tiles;         ///< of kNone; all of them otherwise
  int parts;               ///< of kNone: parts of every tile along k; 1 with whole tiles or ranges
  int band;                ///< tiles along m that neighbouring tile numbers walk through first, for the second-level cache
  int tile_m;              ///< rows of a worker's tile
  int rows;                ///< of kRowCounts: rows of A per group
  int groups;
  Fp8Grouping grouping;
  const std::int32_t* offsets;

  __host__ __device__ int split_units() const { return (tiles - whole_tiles) * k_blocks; }
  /// Where worker w's range of the split tiles begins. Cuts close to a tile's edge move there.
  __host__ __device__ int range_begin(int w) const {
    constexpr int kClose = 2;
    const int unit = split_units() / workers * w + split_units() % workers * w / workers, inside = unit % k_blocks;
    if (k_blocks < 4 * kClose) return unit;
    if (inside <= kClose) return unit - inside;
    return k_blocks - inside <= kClose ? unit + k_blocks - inside : unit;
  }
};

/// A part of a tile: k blocks [k_begin, k_end), counted from the first column of A and B.
struct Fp8Piece {
  int tile;                 ///< of its group
  int group, k_begin, k_end;
  int first_row, rows;      ///< of A and D: where the group begins, how many it has
  bool contribution;        ///< does not hold the tile's beginning
  int contributors;         ///< workers after this one that hold the rest of the tile
  int part;                 ///< of Fp8Schedule::parts
};

/// A worker's pieces in order.
class Fp8Work {
 public:
  __device__ Fp8Work(const Fp8Schedule& schedule, int rows, int worker) : s_(schedule), rows_(rows), worker_(worker), tile_(worker) {
    if (s_.grouping == Fp8Grouping::kNone && s_.whole_tiles < s_.tiles && s_.parts == 1) {
      position_ = s_.range_begin(worker);
      end_ = s_.range_begin(worker + 1);
    }
  }

  __device__ bool next(Fp8Piece& piece) {
    switch (s_.grouping) {
      case Fp8Grouping::kNone: return next_plain(piece);
      case Fp8Grouping::kDepth: return next_depth(piece);
      default: return next_rows(piece);
    }
  }

 private:
  __device__ bool next_plain(Fp8Piece& piece) {
    if (s_.parts > 1) {
      const int index = worker_ / s_.parts, part = worker_ % s_.parts;
      if (done_ || index >= s_.tiles) return false;
      done_ = true;
      piece = {index, 0, s_.k_blocks * part / s_.parts, s_.k_blocks * (part + 1) / s_.parts, 0, rows_, false, 0, part};
      return true;
    }
    const bool inside = position_ < end_ && position_ % s_.k_blocks != 0;
    if (inside || (tile_ >= s_.whole_tiles && position_ < end_)) {
      const int index = position_ / s_.k_blocks, first = index * s_.k_blocks, last = first + s_.k_blocks, stop = min(last, end_);
      int contributors = 0;
      if (!inside)
        while (worker_ + 1 + contributors < s_.workers && s_.range_begin(worker_ + 1 + contributors) < last) ++contributors;
      piece = {s_.whole_tiles + index, 0, position_ - first, stop - first, 0, rows_, inside, contributors, 0};
      position_ = stop;
      return true;
    }
    if (tile_ >= s_.whole_tiles) return false;
    piece = {tile_, 0, 0, s_.k_blocks, 0, rows_, false, 0, 0};
    tile_ += s_.workers;
    return true;
  }

  __device__ bool next_rows(Fp8Piece& piece) {
    for (;; ++group_, before_ += count_, count_ = -1) {
      if (group_ >= s_.groups) return false;
      if (count_ < 0) {
        const bool counts = s_.grouping == Fp8Grouping::kRowCounts;
        first_row_ = counts ? group_ * s_.rows : __ldg(s_.offsets + group_);
        group_rows_ = counts ? __ldg(s_.offsets + group_) : __ldg(s_.offsets + group_ + 1) - first_row_;
        count_ = (group_rows_ + s_.tile_m - 1) / s_.tile_m * s_.tiles_n;
      }
      if (tile_ < before_ + count_) break;
    }
    piece = {tile_ - before_, group_, 0, s_.k_blocks, first_row_, group_rows_, false, 0, 0};
    tile_ += s_.workers;
    return true;
  }

  __device__ bool next_depth(Fp8Piece& piece) {
    if (tile_ >= s_.tiles) return false;
    const int per_group = s_.tiles_m * s_.tiles_n, group = tile_ / per_group;
    piece = {tile_ - group * per_group, group, __ldg(s_.offsets + group) / 128, __ldg(s_.offsets + group + 1) / 128, 0, rows_, false, 0, 0};
    tile_ += s_.workers;
    return true;
  }

  const Fp8Schedule& s_;
  int rows_, worker_, tile_;
  int position_ = 0, end_ = 0;
  bool done_ = false;
  int group_ = 0, before_ = 0, count_ = -1, first_row_ = 0, group_rows_ = 0;
};

/// A tile's place: bands of `band` tiles along m, and inside a band m first.
__device__ inline int2 place_of_tile(int tile, int tiles_m, int tiles_n, int band) {
  const int per_band = band * tiles_n, which = tile / per_band, first = which * band, inside = tile - which * per_band;
  const int height = tiles_m - first < band ? tiles_m - first : band;
  return {first + inside % height, inside / height};
}

}  // namespace narrow::cuda::sm90
