#pragma once
/// `narrow layout NAME ROWS COLS`: a small matrix, with the address of every element.

#include <cstdint>
#include <string>

#include "narrow/layout.h"

namespace narrow {

/// The picture, one line per row. Throws InvalidArgument for sizes beyond what a page holds.
std::string draw_layout(Layout layout, std::int64_t rows, std::int64_t cols);

}  // namespace narrow
