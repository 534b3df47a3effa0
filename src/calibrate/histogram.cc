#include <algorithm>
#include <cmath>
#include <limits>

#include "narrow/calibrate.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr int kLowest = -64, kHighest = 128;  ///< exponents of the range

}  // namespace

double StreamingHistogram::width() const { return std::ldexp(2.0, exponent_) / kBins; }

/// Twice the range, once or more: two neighbours become one bin, counted from the middle.
void StreamingHistogram::widen(int exponent) {
  for (; exponent_ < exponent; ++exponent_) {
    std::vector<std::int64_t> joined(kBins, 0);
    for (int i = 0; i < kBins; ++i) joined[static_cast<std::size_t>(kBins / 4 + i / 2)] += bins_[static_cast<std::size_t>(i)];
    bins_ = std::move(joined);
  }
}

void StreamingHistogram::add(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::isfinite(value) ? std::fabs(value) : 0.0f);
  int exponent = kLowest;
  if (largest > 0.0f) std::frexp(largest, &exponent);  // largest < 2^exponent
  widen(std::clamp(exponent, kLowest, kHighest));
  const float factor = static_cast<float>(1.0 / width());
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const int bin = static_cast<int>(std::floor(value * factor)) + kBins / 2;
    ++bins_[static_cast<std::size_t>(std::clamp(bin, 0, kBins - 1))];
    ++count_;
  }
}

void StreamingHistogram::merge(const StreamingHistogram& other) {
  StreamingHistogram copy = other;
  const int exponent = std::max(exponent_, copy.exponent_);
  widen(exponent);
  copy.widen(exponent);
  for (std::size_t i = 0; i < bins_.size(); ++i) bins_[i] += copy.bins_[i];
  count_ += copy.count_;
}

std::vector<std::int64_t> StreamingHistogram::magnitudes() const {
  std::vector<std::int64_t> result(kBins / 2);
  for (int i = 0; i < kBins / 2; ++i)
    result[static_cast<std::size_t>(i)] =
        bins_[static_cast<std::size_t>(kBins / 2 + i)] + bins_[static_cast<std::size_t>(kBins / 2 - 1 - i)];
  return result;
}

StreamingHistogram StreamingHistogram::restore(int exponent, std::vector<std::int64_t> bins) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / kBins / 4;  // sums of merged histograms stay in range
  if (bins.size() != kBins || exponent < kLowest || exponent > kHighest ||
      std::any_of(bins.begin(), bins.end(), [](std::int64_t count) { return count < 0 || count > kMost; }))
    throw InvalidArgument("a histogram has other bins or another range than narrow writes");
  StreamingHistogram histogram;
  histogram.exponent_ = exponent;
  for (const std::int64_t count : bins) histogram.count_ += count;
  histogram.bins_ = std::move(bins);
  return histogram;
}

}  // namespace narrow
