#include "report/numbers.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace narrow::report {
namespace {

/// Three significant digits without an exponent, for values in [0, 10000).
std::string three_digits(double value) {
  return value < 9.995 ? fmt::format("{:.2f}", value) : (value < 99.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value));
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string rate_text(double bytes_per_second) {
  constexpr std::array<const char*, 4> kUnits{"kB/s", "MB/s", "GB/s", "TB/s"};
  if (!std::isfinite(bytes_per_second)) return "-";
  double value = bytes_per_second / 1e3;
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1e3;
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 60.0) return fmt::format("{} s", three_digits(seconds));
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string count_text(std::int64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string value_text(double value) { return fmt::format("{:.4g}", value); }

std::string exact_text(double value) { return fmt::format("{}", static_cast<float>(value)); }

std::string power_text(double value) {
  int exponent = 0;
  if (std::frexp(value, &exponent) != 0.5 || (exponent > -4 && exponent < 18)) return value_text(value);
  return fmt::format("2^{}", exponent - 1);
}

std::string decibel_text(double decibels) {
  if (std::isinf(decibels) && decibels > 0) return "exact";
  return fmt::format("{:.2f} dB", decibels);
}

std::string percent_text(double share) {
  const double percent = 100.0 * share;
  if (percent == 0.0) return "0 %";
  if (percent < 0.01) return "<0.01 %";
  return fmt::format("{} %", three_digits(percent));
}

}  // namespace narrow::report
