#include "report/progress.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "report/numbers.h"

namespace narrow::report {
namespace {

constexpr double kRedrawSeconds = 0.05;
constexpr std::size_t kBarCells = 24;

double share_of(std::uint64_t done, std::uint64_t total) {
  return total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
}

/// Rate and remaining time, from the mean so far.
std::string pace_text(std::uint64_t done, std::uint64_t total, double seconds, ProgressUnit unit) {
  if (done == 0 || seconds <= 0.0) return "";
  const double rate = static_cast<double>(done) / seconds;
  const double left = static_cast<double>(total - std::min(done, total)) / rate;
  return fmt::format("{}ETA {}", unit == ProgressUnit::kBytes ? rate_text(rate) + "  " : "", duration_text(left));
}

}  // namespace

std::string bar_text(const Style& style, double share, std::size_t width) {
  const auto eighths = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(8 * width)));
  if (!style.unicode) {
    const std::size_t full = eighths / 8;
    return repeated("#", full) + repeated(".", width - full);
  }
  constexpr std::array<std::string_view, 8> kParts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string bar = repeated("█", eighths / 8);
  bar += kParts[eighths % 8];
  const std::size_t used = eighths / 8 + (eighths % 8 != 0 ? 1 : 0);
  return bar + repeated(" ", width - used);
}

Progress::Progress(std::FILE* stream, ProgressMode mode, Style style, std::string verb, std::int64_t tensors, ProgressUnit unit)
    : stream_(stream), mode_(mode), style_(style), verb_(std::move(verb)), tensors_(tensors), unit_(unit) {}

Progress::~Progress() {
  if (drawn_width_ == 0) return;
  std::fputs(fmt::format("\r{}\r", std::string(drawn_width_, ' ')).c_str(), stream_);
  std::fflush(stream_);
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

void Progress::update(std::string_view name, std::string_view detail, std::uint64_t done, std::uint64_t total) {
  ++seen_;
  if (mode_ == ProgressMode::kBar) draw_bar(name, done, total);
  if (mode_ == ProgressMode::kLines) print_line(name, detail, done, total);
}

void Progress::draw_bar(std::string_view name, std::uint64_t done, std::uint64_t total) {
  const double now = seconds();
  if (last_drawn_ >= 0.0 && now - last_drawn_ < kRedrawSeconds && done < total) return;
  last_drawn_ = now;
  const double share = share_of(done, total);
  const std::string_view left = style_.unicode ? "▕" : "[", right = style_.unicode ? "▏" : "]";
  const std::string head = fmt::format("{} ", verb_);
  const std::string tail = fmt::format(" {:3.0f} %  {}  ", std::floor(100.0 * share), pace_text(done, total, now, unit_));
  const std::size_t taken = display_width(head) + kBarCells + 2 + display_width(tail);
  const std::size_t room = static_cast<std::size_t>(std::max(style_.width, 40)) - 1;
  const std::string label = taken < room ? shortened(style_, name, room - taken) : "";
  const std::size_t width = taken + display_width(label);
  const std::string blanks(drawn_width_ > width ? drawn_width_ - width : 0, ' ');
  const std::string line = fmt::format("\r{}{}{}{}{}{}{}", painted(style_, Paint::kBold, head), left,
                                       painted(style_, Paint::kAccent, bar_text(style_, share, kBarCells)), right, tail,
                                       painted(style_, Paint::kDim, label), blanks);
  std::fputs(line.c_str(), stream_);
  std::fflush(stream_);
  drawn_width_ = width;
}

void Progress::print_line(std::string_view name, std::string_view detail, std::uint64_t done, std::uint64_t total) {
  std::string line = fmt::format("{} {}{} {}", verb_, seen_, tensors_ > 0 ? fmt::format("/{}", std::max(tensors_, seen_)) : "", name);
  if (!detail.empty()) line += fmt::format("  {}", detail);
  line += fmt::format("  {:.0f} %  {}", std::floor(100.0 * share_of(done, total)), pace_text(done, total, seconds(), unit_));
  line.erase(line.find_last_not_of(' ') + 1);
  std::fputs((line + "\n").c_str(), stream_);
  std::fflush(stream_);
}

}  // namespace narrow::report
