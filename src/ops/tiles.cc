#include "ops/tiles.h"

#include <algorithm>
#include <numeric>

namespace narrow {
namespace {

// A tile's input stays in a core's second-level cache between the pass that measures and the pass that encodes.
constexpr std::int64_t kTargetElements = 64 * 1024;
constexpr std::int64_t kEnoughTiles = 64;
// Where groups of their own take care of that, a tile is as large as leaves enough of them: kernels work ahead within a tile.
constexpr std::int64_t kLongElements = 1024 * 1024;

}  // namespace

std::vector<Tile> split_tiles(const ScaleGrid& grid, std::int64_t rows, std::int64_t cols, bool scales_given) {
  std::vector<Tile> tiles;
  if (rows == 0 || cols == 0) return tiles;
  if (grid.whole_tensor && !scales_given) return {{0, rows, 0, cols}};  // one rectangle, whose scale is not known yet
  const std::int64_t tile_rows = scales_given ? 1 : std::min(grid.tile_rows, grid.matrix_rows);
  const std::int64_t unit_cols = scales_given ? 8 : std::lcm(grid.tile_cols, std::int64_t{8});

  // Columns are cut only where the rows alone would leave cores idle, or where rows are long.
  std::int64_t tile_cols = cols;
  const std::int64_t stripes = (rows + tile_rows - 1) / tile_rows;
  if (unit_cols < cols && (stripes < kEnoughTiles || tile_rows * cols > kTargetElements)) {
    const std::int64_t wanted = std::max<std::int64_t>(kTargetElements / tile_rows, 1);
    tile_cols = std::max(unit_cols, wanted / unit_cols * unit_cols);
  }
  const std::int64_t matrix_rows = scales_given ? rows : grid.matrix_rows;
  const std::int64_t target = scales_given ? kTargetElements : std::clamp(rows * cols / kEnoughTiles, kTargetElements, kLongElements);
  const std::int64_t stripes_per_tile = std::max<std::int64_t>(1, target / std::max<std::int64_t>(1, tile_rows * tile_cols));
  for (std::int64_t matrix = 0; matrix < rows; matrix += matrix_rows)
    for (std::int64_t row = 0; row < matrix_rows; row += tile_rows * stripes_per_tile)
      for (std::int64_t col = 0; col < cols; col += tile_cols)
        tiles.push_back(
            {matrix + row, matrix + std::min(matrix_rows, row + tile_rows * stripes_per_tile), col, std::min(cols, col + tile_cols)});
  return tiles;
}

}  // namespace narrow
