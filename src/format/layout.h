#pragma once
/// The index maps of memory layouts, as data. Host and device; a layout known at compile time costs shifts and masks.
///
/// A matrix is padded to whole tiles. Within a tile the offset is a mixed-radix number whose digits are taken from the
/// row or the column: digit = (coordinate / divisor) % radix, slowest digit first. So every map has an exact inverse: take
/// the digits off the offset, fastest first, and put them back into their coordinate.

#include <cstdint>

#include "narrow/format.h"
#include "narrow/layout.h"

namespace narrow {

struct LayoutDigit {
  bool of_column = false;
  std::int8_t divisor = 1;
  std::int8_t radix = 1;
};

struct LayoutMap {
  std::int8_t tile_rows = 1, tile_cols = 1;
  bool stripes = true;  ///< tiles follow one another down the rows, then stripe by stripe; else along the columns first
  std::int8_t digit_count = 0;
  LayoutDigit digits[5] = {};
};

/// What NVIDIA documents for cublasLtOrder_t, digit by digit.
///   COL32_2R_4R4: offset in the tile = (((row % 8) / 2 * 4 + row / 8) * 2 + row % 2) * 32 + col
///   COL4_4R2_8C:  inner tiles of 4 columns within the 4 even or the 4 odd rows; first the even rows' half of the tile
NARROW_HOST_DEVICE constexpr LayoutMap layout_map(Layout layout) {
  switch (layout) {
    case Layout::kRow: return {1, 1, false, 0, {}};
    case Layout::kCol: return {1, 1, true, 0, {}};
    case Layout::kCol32: return {1, 32, true, 1, {{true, 1, 32}}};
    case Layout::kCol4_4r2_8c: return {8, 32, true, 5, {{false, 1, 2}, {true, 8, 4}, {true, 4, 2}, {false, 2, 4}, {true, 1, 4}}};
    case Layout::kCol32_2r_4r4: return {32, 32, true, 4, {{false, 2, 4}, {false, 8, 4}, {false, 1, 2}, {true, 1, 32}}};
  }
  return {};
}

NARROW_HOST_DEVICE constexpr std::int64_t padded(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile * tile; }

/// Where (row, col) of a matrix rows x cols lies, in elements.
NARROW_HOST_DEVICE constexpr std::int64_t map_offset(Layout layout, std::int64_t row, std::int64_t col, std::int64_t rows,
                                                     std::int64_t cols) {
  const LayoutMap map = layout_map(layout);
  const std::int64_t tile_row = row / map.tile_rows, tile_col = col / map.tile_cols;
  const std::int64_t down = padded(rows, map.tile_rows) / map.tile_rows, across = padded(cols, map.tile_cols) / map.tile_cols;
  const std::int64_t tile = map.stripes ? tile_col * down + tile_row : tile_row * across + tile_col;
  const std::int64_t in_row = row % map.tile_rows, in_col = col % map.tile_cols;
  std::int64_t offset = tile;
  for (int i = 0; i < map.digit_count; ++i) {
    const LayoutDigit digit = map.digits[i];
    offset = offset * digit.radix + (digit.of_column ? in_col : in_row) / digit.divisor % digit.radix;
  }
  return offset;
}

struct LayoutPosition {
  std::int64_t row = 0, col = 0;
};

/// The inverse: which element lies at an offset. Positions beyond rows x cols are padding.
NARROW_HOST_DEVICE constexpr LayoutPosition map_position(Layout layout, std::int64_t offset, std::int64_t rows, std::int64_t cols) {
  const LayoutMap map = layout_map(layout);
  std::int64_t in_row = 0, in_col = 0;
  for (int i = map.digit_count - 1; i >= 0; --i) {
    const LayoutDigit digit = map.digits[i];
    (digit.of_column ? in_col : in_row) += offset % digit.radix * digit.divisor;
    offset /= digit.radix;
  }
  const std::int64_t down = padded(rows, map.tile_rows) / map.tile_rows, across = padded(cols, map.tile_cols) / map.tile_cols;
  const std::int64_t tile_row = map.stripes ? offset % down : offset / across, tile_col = map.stripes ? offset / down : offset % across;
  return {tile_row * map.tile_rows + in_row, tile_col * map.tile_cols + in_col};
}

NARROW_HOST_DEVICE constexpr std::int64_t map_size(Layout layout, std::int64_t rows, std::int64_t cols) {
  const LayoutMap map = layout_map(layout);
  return padded(rows, map.tile_rows) * padded(cols, map.tile_cols);
}

/// Columns that are neighbours in memory: those of one row that share all digits but the fastest.
NARROW_HOST_DEVICE constexpr std::int64_t map_run(Layout layout, std::int64_t cols) {
  const LayoutMap map = layout_map(layout);
  if (map.digit_count > 0) return map.digits[map.digit_count - 1].radix;
  return map.stripes ? 1 : cols;
}

static_assert(map_offset(Layout::kRow, 2, 3, 5, 7) == 17);
static_assert(map_offset(Layout::kCol, 2, 3, 5, 7) == 17);
static_assert(map_offset(Layout::kCol32, 1, 32, 2, 33) == 64 + 32);      // cuBLASLt: 33 columns, 2 rows: stripes 64 apart
static_assert(map_offset(Layout::kCol4_4r2_8c, 0, 32, 1, 33) == 256);    // cuBLASLt: 33 columns, 1 row: stripes 256 apart
static_assert(map_offset(Layout::kCol32_2r_4r4, 0, 32, 1, 33) == 1024);  // cuBLASLt: 33 columns, 1 row: stripes 1024 apart
static_assert(map_offset(Layout::kCol32_2r_4r4, 13, 5, 32, 32) == ((((13 % 8) / 2 * 4 + 13 / 8) * 2 + 13 % 2) * 32 + 5));

}  // namespace narrow
