#include "format/layout.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "narrow/error.h"

namespace narrow {
namespace {

TEST(Layout, MapsAreExactInverses) {
  for (const Layout layout : all_layouts())
    for (const std::int64_t rows : {1, 2, 7, 8, 9, 31, 32, 33, 70})
      for (const std::int64_t cols : {1, 5, 31, 32, 33, 64, 100}) {
        const std::int64_t size = map_size(layout, rows, cols);
        std::vector<int> hits(static_cast<std::size_t>(size), 0);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t col = 0; col < cols; ++col) {
            const std::int64_t offset = map_offset(layout, row, col, rows, cols);
            ASSERT_GE(offset, 0);
            ASSERT_LT(offset, size);
            ++hits[static_cast<std::size_t>(offset)];
            const LayoutPosition back = map_position(layout, offset, rows, cols);
            ASSERT_EQ(back.row, row);
            ASSERT_EQ(back.col, col);
          }
        for (const int hit : hits) ASSERT_LE(hit, 1) << name_of(layout) << " " << rows << "x" << cols;
        ASSERT_EQ(std::accumulate(hits.begin(), hits.end(), 0), rows * cols);
      }
}

// The documented forms, written out a second time.
TEST(Layout, MatchesTheDocumentedFormulas) {
  const std::int64_t rows = 64, cols = 96;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t stripe = col / 32 * rows * 32;
      EXPECT_EQ(map_offset(Layout::kCol32, row, col, rows, cols), stripe + row * 32 + col % 32);
      const std::int64_t r = row % 32;
      EXPECT_EQ(map_offset(Layout::kCol32_2r_4r4, row, col, rows, cols),
                stripe + row / 32 * 1024 + (((r % 8) / 2 * 4 + r / 8) * 2 + r % 2) * 32 + col % 32);
      // Turing: an 8 x 32 tile is 2 halves (even, odd rows) of 4 groups of 8 columns, each two inner tiles of 4 rows x 4 columns.
      const std::int64_t half = row % 2, group = col % 32 / 8, inner = col % 8 / 4, in_row = row % 8 / 2, in_col = col % 4;
      EXPECT_EQ(map_offset(Layout::kCol4_4r2_8c, row, col, rows, cols),
                stripe + row / 8 * 256 + half * 128 + group * 32 + inner * 16 + in_row * 4 + in_col);
    }
}

TEST(Layout, TransformsThereAndBack) {
  for (const Shape& shape : {Shape{33, 70}, Shape{2, 9, 31}, Shape{1, 1}, Shape{40, 64}, Shape{0, 5}, Shape{5}})
    for (const DType dtype : {DType::kI8, DType::kF16, DType::kF32, DType::kI64}) {
      Tensor x = Tensor::empty(dtype, shape);
      for (std::size_t i = 0; i < x.byte_size(); ++i) x.data()[i] = static_cast<std::byte>(i * 37 + i / 251 + 1);
      const MatrixShape matrix = as_matrices(shape);
      for (const Layout from : all_layouts())
        for (const Layout to : all_layouts()) {
          const Tensor a = transform(x, shape, Layout::kRow, from);
          const Tensor b = transform(a, shape, from, to);
          ASSERT_EQ(b.size(), matrix.matrices * map_size(to, matrix.rows, matrix.cols));
          const Tensor c = transform(b, shape, to, Layout::kRow);
          ASSERT_EQ(c.shape(), shape);
          EXPECT_TRUE(std::equal(x.data(), x.data() + x.byte_size(), c.data())) << name_of(from) << " " << name_of(to);
        }
    }
}

TEST(Layout, PaddingIsZero) {
  Tensor x = Tensor::empty(DType::kI8, {3, 5});
  std::fill_n(x.as<std::int8_t>(), 15, std::int8_t{7});
  const Tensor y = transform(x, {3, 5}, Layout::kRow, Layout::kCol32_2r_4r4);
  ASSERT_EQ(y.size(), 1024);
  EXPECT_EQ(std::accumulate(y.as<std::int8_t>(), y.as<std::int8_t>() + 1024, 0), 15 * 7);
}

TEST(Layout, NamesAndErrors) {
  for (const Layout layout : all_layouts()) EXPECT_EQ(parse_layout(name_of(layout)), layout);
  EXPECT_THROW(parse_layout("col64"), InvalidArgument);
  EXPECT_THROW(layout_offset(Layout::kRow, 3, 0, 3, 1), InvalidArgument);
  EXPECT_THROW(transform(Tensor::empty(DType::kI8, {4}), {2, 3}, Layout::kRow, Layout::kCol), InvalidArgument);
  EXPECT_THROW(transform(Tensor::empty(DType::kF4, {2, 4}), {2, 4}, Layout::kRow, Layout::kCol), Unsupported);
}

}  // namespace
}  // namespace narrow
