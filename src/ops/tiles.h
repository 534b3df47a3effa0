#pragma once
/// How an operation over a matrix is cut into tiles for threads. The cut never changes a result.

#include <vector>

#include "kernels/quantize.h"

namespace narrow {

/// Tiles of whole scale rectangles; of any rows and multiples of 8 columns where the scales are given.
std::vector<Tile> split_tiles(const ScaleGrid& grid, std::int64_t rows, std::int64_t cols, bool scales_given);

}  // namespace narrow
