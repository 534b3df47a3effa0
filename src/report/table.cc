#include "report/table.h"

#include <algorithm>

namespace narrow::report {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowestElastic = 20;

/// A cell in its column; the last column is not padded on its right, so that no line ends in blanks.
std::string aligned(const Style& style, const Cell& cell, const Column& column, std::size_t width, bool last) {
  const std::string text = column.elastic ? shortened(style, cell.text, width) : cell.text;
  const std::size_t taken = display_width(text);
  const std::string blanks(width > taken ? width - taken : 0, ' ');
  const std::string body = painted(style, cell.paint, text);
  if (column.align == Align::kRight) return blanks + body;
  return last ? body : body + blanks;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::add(std::vector<Cell> cells) {
  cells.resize(columns_.size(), Cell(""));
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths(const Style& style) const {
  std::vector<std::size_t> result;
  std::size_t total = 0, elastic = 0;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = std::max<std::size_t>(1, display_width(columns_[i].header));
    for (const auto& row : rows_) width = std::max(width, display_width(row[i].text));
    result.push_back(width);
    total += width + (i > 0 ? kGap : 0);
    if (columns_[i].elastic && width > kNarrowestElastic) elastic += width - kNarrowestElastic;
  }
  const std::size_t room = style.width > 0 ? static_cast<std::size_t>(style.width) : total;
  for (std::size_t i = columns_.size(); i-- > 0 && total > room + elastic;) {
    if (!columns_[i].optional) continue;
    total -= result[i] + kGap;
    result[i] = 0;
  }
  for (std::size_t i = 0; i < columns_.size() && total > room; ++i) {
    if (!columns_[i].elastic || result[i] <= kNarrowestElastic) continue;
    const std::size_t give = std::min(total - room, result[i] - kNarrowestElastic);
    result[i] -= give;
    total -= give;
  }
  return result;
}

std::string Table::render(const Style& style) const {
  const std::vector<std::size_t> width = widths(style);
  std::vector<Cell> headers;
  std::string rule;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    headers.emplace_back(columns_[i].header, Paint::kBold);
    if (width[i] > 0) rule += std::string(rule.empty() ? 0 : kGap, ' ') + repeated(style.unicode ? "─" : "-", width[i]);
  }
  const auto line_of = [&](const std::vector<Cell>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (width[i] == 0) continue;
      line += std::string(i > 0 ? kGap : 0, ' ') + aligned(style, cells[i], columns_[i], width[i], i + 1 == cells.size());
    }
    return without_trailing_blanks(std::move(line)) + "\n";
  };
  const bool headed = std::any_of(columns_.begin(), columns_.end(), [](const Column& column) { return !column.header.empty(); });
  std::string text = headed ? line_of(headers) + painted(style, Paint::kDim, rule) + "\n" : "";
  for (const auto& row : rows_) text += line_of(row);
  return text;
}

}  // namespace narrow::report
