#include "layout.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow {

std::string draw_layout(Layout layout, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMostRows = 256, kMostCols = 128;
  if (rows < 1 || rows > kMostRows || cols < 1 || cols > kMostCols)
    throw InvalidArgument(fmt::format("layout: a picture of {} x {} is not drawn; take 1 to {} rows and 1 to {} columns", rows, cols, kMostRows, kMostCols));
  const std::int64_t size = layout_size(layout, rows, cols);
  const int width = static_cast<int>(fmt::formatted_size("{}", size - 1)) + 1;
  std::string text = fmt::format("{}: {} x {} elements in {} places; the address of every element\n", name_of(layout), rows, cols, size);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) text += fmt::format("{:>{}}", layout_offset(layout, row, col, rows, cols), width);
    text += '\n';
  }
  return text;
}

}  // namespace narrow
