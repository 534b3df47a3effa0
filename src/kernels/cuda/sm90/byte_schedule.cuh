#pragma once
/// Which tiles every worker of an fp8 product computes. A worker is a thread block, or a cluster of them. Tiles are dealt in turn.
///
/// Where there are far fewer tiles than multiprocessors, every tile is cut along k into the same number of parts, one per thread block of a
/// cluster; the first two each finish one warpgroup's sums, which the others send them.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda::sm90 {

struct ByteSchedule {
  int tiles_m, tiles_n;  ///< of one group, in units of a worker's tile; of kRowOffsets and kRowCounts tiles_m is unused
  int k_blocks;          ///< of one group; of kDepth unused
  int workers;
  int tiles;   ///< of kNone and kDepth
  int parts;   ///< of kNone: parts of every tile along k
  int band;    ///< tiles along m that neighbouring tile numbers walk through first, for the second-level cache
  int tile_m;  ///< rows of a worker's tile
  int rows;    ///< of kRowCounts: rows of A per group
  int groups;
  ByteGrouping grouping;
  const std::int32_t* offsets;
  bool overlapping;  ///< of ByteTile::kMayOverlap: the last tiles end where the matrix does
};

/// A part of a tile: k blocks [k_begin, k_end), counted from the first column of A and B.
struct BytePiece {
  int tile;  ///< of its group
  int group, k_begin, k_end;
  int first_row, rows;  ///< of A and D: where the group begins, how many it has
  int part;             ///< of ByteSchedule::parts
};

/// A worker's pieces in order.
class ByteWork {
 public:
  __device__ ByteWork(const ByteSchedule& schedule, int rows, int worker) : s_(schedule), rows_(rows), tile_(worker) {}

  __device__ bool next(BytePiece& piece) {
    switch (s_.grouping) {
      case ByteGrouping::kNone: return next_plain(piece);
      case ByteGrouping::kDepth: return next_depth(piece);
      default: return next_rows(piece);
    }
  }

 private:
  __device__ bool next_plain(BytePiece& piece) {
    const int index = tile_ / s_.parts, part = tile_ % s_.parts;
    if (index >= s_.tiles) return false;
    piece = {index, 0, s_.k_blocks * part / s_.parts, s_.k_blocks * (part + 1) / s_.parts, 0, rows_, part};
    tile_ += s_.workers;
    return true;
  }

  /// Of kRowOffsets where a group's rows end, of kRowCounts how many it has; 0 behind the last group.
  __device__ int bound_of(int group) const {
    return group < s_.groups ? __ldg(s_.offsets + group + (s_.grouping == ByteGrouping::kRowCounts ? 0 : 1)) : 0;
  }

  /// Groups without rows cost a few instructions each: their bounds are read one group ahead, and nothing is divided.
  __device__ bool next_rows(BytePiece& piece) {
    const bool counts = s_.grouping == ByteGrouping::kRowCounts;
    if (group_ < 0) {
      end_ = counts ? 0 : __ldg(s_.offsets);
      bound_ = bound_of(0);
    }
    while (group_ < 0 || tile_ >= before_ + count_) {
      before_ += count_;
      if (++group_ >= s_.groups) return false;
      const int bound = bound_;
      bound_ = bound_of(group_ + 1);
      first_row_ = counts ? group_ * s_.rows : end_;
      group_rows_ = counts ? bound : bound - end_;
      end_ = bound;
      count_ = group_rows_ > 0 ? (group_rows_ + s_.tile_m - 1) / s_.tile_m * s_.tiles_n : 0;
    }
    piece = {tile_ - before_, group_, 0, s_.k_blocks, first_row_, group_rows_, 0};
    tile_ += s_.workers;
    return true;
  }

  __device__ bool next_depth(BytePiece& piece) {
    if (tile_ >= s_.tiles) return false;
    const int per_group = s_.tiles_m * s_.tiles_n, group = tile_ / per_group;
    piece = {tile_ - group * per_group, group, __ldg(s_.offsets + group) / 128, __ldg(s_.offsets + group + 1) / 128, 0, rows_, 0};
    tile_ += s_.workers;
    return true;
  }

  const ByteSchedule& s_;
  int rows_, tile_;
  int group_ = -1, before_ = 0, count_ = 0, first_row_ = 0, group_rows_ = 0;
  int end_ = 0, bound_ = 0;  ///< where this group's rows end; bound_of the next one
};

/// A tile's place: bands of `band` tiles along m, and inside a band m first.
__device__ inline int2 place_of_tile(int tile, int tiles_m, int tiles_n, int band) {
  const int per_band = band * tiles_n, which = tile / per_band, first = which * band, inside = tile - which * per_band;
  const int height = tiles_m - first < band ? tiles_m - first : band;
  return {first + inside % height, inside / height};
}

}  // namespace narrow::cuda::sm90
