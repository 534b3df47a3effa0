#pragma once
/// Progress of work on tensors: a bar on a terminal, a line per tensor in a pipe, or nothing.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "report/style.h"

namespace narrow::report {

enum class ProgressMode : std::uint8_t { kNone, kLines, kBar };

enum class ProgressUnit : std::uint8_t { kBytes, kSteps };  ///< what is counted: a rate is told of bytes alone

/// Writes to the stream it is given. A failed write (a closed pipe) is no error: progress is a courtesy.
class Progress {
 public:
  /// tensors: how many will come; 0: not known.
  Progress(std::FILE* stream, ProgressMode mode, Style style, std::string verb, std::int64_t tensors,
           ProgressUnit unit = ProgressUnit::kBytes);
  /// Takes the bar away.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each tensor: its name, what became of it ("int8:row  42.1 dB"), and the bytes (or steps) behind and in all.
  void update(std::string_view name, std::string_view detail, std::uint64_t done, std::uint64_t total);
  double seconds() const;

 private:
  void draw_bar(std::string_view name, std::uint64_t done, std::uint64_t total);
  void print_line(std::string_view name, std::string_view detail, std::uint64_t done, std::uint64_t total);

  using Clock = std::chrono::steady_clock;
  std::FILE* stream_;
  ProgressMode mode_;
  Style style_;
  std::string verb_;
  std::int64_t tensors_ = 0, seen_ = 0;
  ProgressUnit unit_;
  Clock::time_point begin_ = Clock::now();
  double last_drawn_ = -1.0;
  std::size_t drawn_width_ = 0;
};

/// A bar of `width` cells, filled to `share` in eighths of a cell (ASCII: whole cells).
std::string bar_text(const Style& style, double share, std::size_t width);

}  // namespace narrow::report
