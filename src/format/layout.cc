#include "format/layout.h"

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/quoted.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::array kAll{Layout::kRow, Layout::kCol, Layout::kCol32, Layout::kCol4_4r2_8c, Layout::kCol32_2r_4r4};
constexpr std::array<std::string_view, 5> kNames{"row", "col", "col32", "col4_4r2_8c", "col32_2r_4r4"};

}  // namespace

std::string_view name_of(Layout layout) { return kNames[static_cast<std::size_t>(layout)]; }

Layout parse_layout(std::string_view name) {
  for (const Layout layout : kAll)
    if (name_of(layout) == name) return layout;
  throw InvalidArgument(fmt::format("layout {} is not known; the layouts are {}", in_quotes(name), fmt::join(kNames, ", ")));
}

std::span<const Layout> all_layouts() { return kAll; }

std::int64_t layout_size(Layout layout, std::int64_t rows, std::int64_t cols) { return map_size(layout, rows, cols); }

std::int64_t layout_offset(Layout layout, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
  if (row < 0 || row >= rows || col < 0 || col >= cols)
    throw InvalidArgument(fmt::format("layout: element ({}, {}) is not in a matrix of {} x {}", row, col, rows, cols));
  return map_offset(layout, row, col, rows, cols);
}

}  // namespace narrow
