#pragma once
/// Memory layouts of a matrix: where element (row, col) lies. The tiled ones are the layouts of cuBLASLt's int8 products.

#include <cstdint>
#include <span>
#include <string_view>

#include "narrow/tensor.h"

namespace narrow {

enum class Layout : std::uint8_t {
  kRow,           ///< row-major, the layout of tensors
  kCol,           ///< column-major
  kCol32,         ///< stripes of 32 columns, each stripe row-major (CUBLASLT_ORDER_COL32)
  kCol4_4r2_8c,   ///< stripes of tiles of 8 rows x 32 columns (CUBLASLT_ORDER_COL4_4R2_8C, Turing)
  kCol32_2r_4r4,  ///< stripes of tiles of 32 rows x 32 columns (CUBLASLT_ORDER_COL32_2R_4R4, Ampere)
};

/// "row", "col", "col32", "col4_4r2_8c", "col32_2r_4r4".
std::string_view name_of(Layout layout);
/// Throws InvalidArgument with the allowed names.
Layout parse_layout(std::string_view name);
std::span<const Layout> all_layouts();

/// Elements that a matrix takes in a layout: rows and columns are padded to whole tiles.
std::int64_t layout_size(Layout layout, std::int64_t rows, std::int64_t cols);
/// The offset, in elements, of (row, col) in a matrix of rows x cols.
std::int64_t layout_offset(Layout layout, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols);

/// Rewrites matrices from one layout into another. `data` is contiguous and holds, for every matrix of `shape`,
/// layout_size(from, ...) elements of 1, 2, 4 or 8 bytes. The result has the shape `shape` where `to` is row-major,
/// else [matrices * layout_size(to, ...)]; elements that pad a tile are zero. An exact inverse of the way back.
Tensor transform(const Tensor& data, const Shape& shape, Layout from, Layout to);

}  // namespace narrow
