#include "commands.h"

#include <memory>

#include <fmt/format.h>

#include "narrow/error.h"
#include "narrow/layout.h"

namespace narrow::command {
namespace {

struct Request {
  std::string layout;
  std::int64_t rows = 0, cols = 0;
};

/// A small matrix with the address of every element: one line per row as text, a list of rows as JSON.
void draw(Context& context, const Request& request) {
  constexpr std::int64_t kMostRows = 256, kMostCols = 128;
  std::string name = request.layout;  // in any case: libraries write COL32
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const Layout layout = parse_layout(name);
  const std::int64_t rows = request.rows, cols = request.cols;
  if (rows < 1 || rows > kMostRows || cols < 1 || cols > kMostCols)
    throw InvalidArgument(
        fmt::format("layout: a picture of {} x {} is not drawn; take 1 to {} rows and 1 to {} columns", rows, cols, kMostRows, kMostCols));
  const std::int64_t size = layout_size(layout, rows, cols);
  const int width = static_cast<int>(fmt::formatted_size("{}", size - 1)) + 1;
  std::string text = fmt::format("{}: {} x {} elements in {} places; the address of every element\n", name_of(layout), rows, cols, size);
  report::Json offsets = report::Json::array();
  for (std::int64_t row = 0; row < rows; ++row) {
    report::Json line = report::Json::array();
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t offset = layout_offset(layout, row, col, rows, cols);
      line.push_back(offset);
      text += fmt::format("{:>{}}", offset, width);
    }
    offsets.push_back(std::move(line));
    text += '\n';
  }
  context.answer(report::Json{{"layout", name_of(layout)}, {"rows", rows}, {"cols", cols}, {"size", size}, {"offsets", offsets}});
  context.print(text);
}

}  // namespace

void add_layout(CLI::App& app, Context& context) {
  auto request = std::make_shared<Request>();
  CLI::App* command =
      add_command(app, "layout", "Draw a memory layout: a small matrix, with the address of every element", "  narrow layout COL32 4 64\n");
  command->add_option("NAME", request->layout, "ROW, COL, COL32, COL4_4R2_8C or COL32_2R_4R4")->required()->type_name("");
  command->add_option("ROWS", request->rows, "Rows of the matrix")->required()->type_name("");
  command->add_option("COLS", request->cols, "Columns of the matrix")->required()->type_name("");
  command->callback([&context, request] { context.run = [&context, request] { draw(context, *request); }; });
}

}  // namespace narrow::command
