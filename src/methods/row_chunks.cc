#include "methods/row_chunks.h"

#include <algorithm>

namespace narrow {
namespace {

/// `step` rows are never parted; a run stays within one matrix or covers whole ones.
std::vector<RowChunk> cut(const ScaleGrid& grid, const MatrixShape& matrix, std::int64_t step, std::int64_t wanted) {
  std::vector<RowChunk> chunks;
  const auto push = [&](std::int64_t first, std::int64_t count, Shape shape) {
    const std::int64_t grid_first = grid.count() == 0 ? 0 : grid.grid_row(first);
    const std::int64_t grid_rows = grid.count() == 0 ? 0 : grid.grid_row(first + count - 1) - grid_first + 1;
    chunks.push_back({first, count, grid_first, grid_rows, std::move(shape)});
  };
  const std::int64_t rows = std::max<std::int64_t>(step, wanted / step * step);
  if (rows < matrix.rows) {
    for (std::int64_t m = 0; m < matrix.matrices; ++m)
      for (std::int64_t row = 0; row < matrix.rows; row += rows) {
        const std::int64_t count = std::min(rows, matrix.rows - row);
        push(m * matrix.rows + row, count, {count, matrix.cols});
      }
    return chunks;
  }
  const std::int64_t together = std::max<std::int64_t>(1, rows / matrix.rows);
  for (std::int64_t m = 0; m < matrix.matrices; m += together) {
    const std::int64_t count = std::min(together, matrix.matrices - m);
    push(m * matrix.rows, count * matrix.rows, {count, matrix.rows, matrix.cols});
  }
  return chunks;
}

std::int64_t wanted_rows(const MatrixShape& matrix, DType dtype, std::uint64_t chunk_bytes) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(matrix.cols) * static_cast<std::uint64_t>(bits_of(dtype)) / 8;
  return static_cast<std::int64_t>(std::max<std::uint64_t>(1, chunk_bytes / std::max<std::uint64_t>(1, row_bytes)));
}

}  // namespace

bool quantizes_by_rows(const Scheme& scheme, const QuantizeOptions& options) {
  if (options.rounding == Rounding::kStochastic || options.scales || (scheme.has_outer_scale && !options.outer_scale)) return false;
  return !scheme.has_scales() || (scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows > 0);
}

std::vector<RowChunk> quantize_chunks(const Scheme& scheme, const QuantizeOptions& options, const Shape& shape, DType dtype,
                                      std::uint64_t chunk_bytes) {
  const MatrixShape matrix = as_matrices(shape);
  const ScaleGrid grid = scale_grid(scheme, shape);
  if (matrix.total_rows() == 0 || matrix.cols == 0 || !quantizes_by_rows(scheme, options))
    return {{0, matrix.total_rows(), 0, grid.rows, shape}};
  return cut(grid, matrix, scheme.has_scales() ? std::min(grid.tile_rows, matrix.rows) : 1, wanted_rows(matrix, dtype, chunk_bytes));
}

std::vector<RowChunk> dequantize_chunks(const Scheme& scheme, const Shape& shape, DType dtype, std::uint64_t chunk_bytes) {
  const MatrixShape matrix = as_matrices(shape);
  const ScaleGrid grid = scale_grid(scheme, shape);
  if (matrix.total_rows() == 0 || matrix.cols == 0) return {{0, matrix.total_rows(), 0, grid.rows, shape}};
  const bool free = grid.whole_tensor || grid.tile_rows >= matrix.rows;  // one grid row serves every row of a matrix
  return cut(grid, matrix, free ? 1 : grid.tile_rows, wanted_rows(matrix, dtype, chunk_bytes));
}

}  // namespace narrow
