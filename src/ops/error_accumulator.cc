#include "ops/error_accumulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/float_environment.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

constexpr std::int64_t kChunk = 16 * 1024;

}  // namespace

void ErrorAccumulator::Sums::add_elements(const Tensor& x, const Tensor& y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const double a = load_value(x.data(), x.dtype(), i), b = load_value(y.data(), y.dtype(), i);
    const double error = std::fabs(a - b);
    absolute += error;
    squared += error * error;
    xx += a * a;
    yy += b * b;
    xy += a * b;
    if (!(error <= largest)) largest = error;  // keeps a NaN
  }
}

void ErrorAccumulator::Sums::add(const Sums& other) {
  absolute += other.absolute;
  squared += other.squared;
  xx += other.xx;
  yy += other.yy;
  xy += other.xy;
  if (!(other.largest <= largest)) largest = other.largest;
}

void ErrorAccumulator::add(const Tensor& x, const Tensor& y) {
  const FloatEnvironment environment;
  const std::int64_t size = x.size();
  std::int64_t begin = 0;
  if (count_ % kChunk != 0) {
    begin = std::min(size, kChunk - count_ % kChunk);
    open_.add_elements(x, y, 0, begin);
    count_ += begin;
    if (count_ % kChunk == 0) {
      whole_.add(open_);
      open_ = {};
    }
  }
  const std::int64_t chunks = (size - begin) / kChunk;
  std::vector<Sums> parts(static_cast<std::size_t>(chunks));
#pragma omp parallel for schedule(static) if (chunks > 1)
  for (std::int64_t i = 0; i < chunks; ++i) {
    const FloatEnvironment thread_environment;
    parts[static_cast<std::size_t>(i)].add_elements(x, y, begin + i * kChunk, begin + (i + 1) * kChunk);
  }
  for (const Sums& part : parts) whole_.add(part);
  begin += chunks * kChunk;
  open_.add_elements(x, y, begin, size);
  count_ += chunks * kChunk + (size - begin);
}

ErrorAccumulator::Sums ErrorAccumulator::total() const {
  Sums sums = whole_;
  if (count_ % kChunk != 0) sums.add(open_);
  return sums;
}

double ErrorAccumulator::signal() const { return total().xx; }
double ErrorAccumulator::noise() const { return total().squared; }

ErrorMetrics ErrorAccumulator::metrics() const {
  ErrorMetrics metrics;
  metrics.count = count_;
  if (count_ == 0) {
    metrics.sqnr_db = std::numeric_limits<double>::infinity();
    return metrics;
  }
  const Sums sums = total();
  metrics.max_absolute = sums.largest;
  metrics.mean_absolute = sums.absolute / static_cast<double>(count_);
  metrics.rms = std::sqrt(sums.squared / static_cast<double>(count_));
  metrics.sqnr_db = sums.squared == 0.0 ? std::numeric_limits<double>::infinity() : 10.0 * std::log10(sums.xx / sums.squared);
  const double norms = std::sqrt(sums.xx) * std::sqrt(sums.yy);
  metrics.cosine = norms > 0.0 ? sums.xy / norms : (sums.squared == 0.0 ? 1.0 : 0.0);
  return metrics;
}

}  // namespace narrow
