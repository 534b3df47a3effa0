#include "report/plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/numbers.h"
#include "report/progress.h"

namespace narrow::report {
namespace {

/// Puts text centred at a column where no other text is; leaves it out otherwise.
void place_label(std::string& line, const std::string& text, std::size_t column) {
  const std::size_t half = text.size() / 2;
  std::size_t begin = column > half ? column - half : 0;
  if (begin + text.size() > line.size()) begin = line.size() - std::min(line.size(), text.size());
  const std::size_t from = begin > 0 ? begin - 1 : 0, to = std::min(line.size(), begin + text.size() + 1);
  if (line.find_first_not_of(' ', from) < to || text.size() > line.size()) return;
  line.replace(begin, text.size(), text);
}

struct Ruler {
  double low, high;
  std::size_t width;
  std::size_t column(double position) const {
    if (!(high > low)) return 0;
    return static_cast<std::size_t>(std::lround((position - low) / (high - low) * static_cast<double>(width - 1)));
  }
};

}  // namespace

std::string value_line(const Style& style, const std::vector<double>& values, Axis axis, std::size_t width) {
  std::vector<double> positions;
  for (const double value : values)
    if (axis == Axis::kLinear || value > 0.0) positions.push_back(axis == Axis::kLinear ? value : std::log2(value));
  if (positions.empty() || width < 2) return "";
  const auto [least, most] = std::minmax_element(positions.begin(), positions.end());
  const Ruler ruler{axis == Axis::kLinear ? std::min(0.0, *least) : *least, *most, width};

  std::vector<int> marks(width, 0);
  for (const double position : positions) ++marks[ruler.column(position)];
  std::string line;
  for (const int count : marks) {
    if (count == 0) line += style.unicode ? "─" : "-";
    if (count == 1) line += painted(style, Paint::kAccent, style.unicode ? "┼" : "|");
    if (count > 1) line += painted(style, Paint::kAccent, style.unicode ? "█" : "#");
  }

  std::string labels(width, ' ');
  if (axis == Axis::kLinear) {
    for (const double share : {0.0, 1.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875}) {
      const double position = ruler.low + share * (ruler.high - ruler.low);
      place_label(labels, value_text(position), ruler.column(position));
    }
  } else {
    const int first = static_cast<int>(std::ceil(ruler.low)), last = static_cast<int>(std::floor(ruler.high));
    const int step = std::max(1, (last - first) / std::max(1, static_cast<int>(width / 10)));
    for (int exponent = first; exponent <= last; exponent += step)
      place_label(labels, fmt::format("2^{}", exponent), ruler.column(exponent));
  }
  labels.erase(labels.find_last_not_of(' ') + 1);
  return line + "\n" + painted(style, Paint::kDim, labels) + "\n";
}

std::string histogram_bars(const Style& style, const Histogram& histogram, std::size_t width, bool logarithmic) {
  if (histogram.bins.empty()) return "";
  const auto height = [logarithmic](std::int64_t count) {
    return logarithmic ? std::log2(1.0 + static_cast<double>(count)) : static_cast<double>(count);
  };
  const double tallest = height(*std::max_element(histogram.bins.begin(), histogram.bins.end()));
  const double step = (histogram.high - histogram.low) / static_cast<double>(histogram.bins.size());
  std::string text;
  for (std::size_t i = 0; i < histogram.bins.size(); ++i) {
    const double share = tallest > 0.0 ? height(histogram.bins[i]) / tallest : 0.0;
    std::string bar = bar_text(style, share, width);
    if (!style.unicode) std::replace(bar.begin(), bar.end(), '.', ' ');
    text += fmt::format("{:>11}  {}  {}\n", value_text(histogram.low + (static_cast<double>(i) + 0.5) * step),
                        painted(style, Paint::kAccent, bar), count_text(histogram.bins[i]));
  }
  return text;
}

}  // namespace narrow::report
