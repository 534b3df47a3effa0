#pragma once
/// Pictures made of text.

#include <string>
#include <vector>

#include "report/statistics.h"
#include "report/style.h"

namespace narrow::report {

/// Where values lie on a line from `low` to `high`: a mark where there is one, a heavier one where there are more.
/// Two lines: the marks, and labelled ticks below them.
enum class Axis : std::uint8_t { kLinear, kLog2 };
std::string value_line(const Style& style, const std::vector<double>& values, Axis axis, std::size_t width);

/// A histogram as horizontal bars, one line per bin; logarithmic bars show bins that hold few values.
std::string histogram_bars(const Style& style, const Histogram& histogram, std::size_t width, bool logarithmic);

}  // namespace narrow::report
