#pragma once
/// Aligned tables for terminals and pipes.

#include <string>
#include <utility>
#include <vector>

#include "report/style.h"

namespace narrow::report {

enum class Align : std::uint8_t { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
  bool elastic = false;   ///< gives way, cut in the middle, where the table is wider than the terminal
  bool optional = false;  ///< left out where even that is not enough, the last one first
};

struct Cell {
  std::string text;
  Paint paint = Paint::kPlain;

  Cell(std::string cell_text, Paint cell_paint = Paint::kPlain) : text(std::move(cell_text)), paint(cell_paint) {}
  Cell(const char* cell_text, Paint cell_paint = Paint::kPlain) : text(cell_text), paint(cell_paint) {}
};

/// Rows under bold headers (none where all are empty), columns two blanks apart.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One row; missing cells are blank.
  void add(std::vector<Cell> cells);
  std::size_t row_count() const { return rows_.size(); }
  /// All lines, each ended by a newline.
  std::string render(const Style& style) const;

 private:
  /// Columns of each column of cells; 0: left out.
  std::vector<std::size_t> widths(const Style& style) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace narrow::report
