#include "report/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels/storage.h"
#include "narrow/error.h"

namespace narrow::report {
namespace {

constexpr std::int64_t kChunk = 16 * 1024;

template <typename T>
void copy_values(const Tensor& x, std::int64_t begin, std::int64_t count, double* out) {
  const T* data = reinterpret_cast<const T*>(x.data()) + begin;
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<double>(data[i]);
}

void decode_values(const Format& format, const Tensor& x, std::int64_t begin, std::int64_t count, double* out) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(x.data()) + begin;
  for (std::int64_t i = 0; i < count; ++i) out[i] = decode(format, data[i]);
}

/// Elements [begin, begin + count) of a contiguous tensor.
void load_values(const Tensor& x, std::int64_t begin, std::int64_t count, double* out) {
  switch (x.dtype()) {
    case DType::kF32: return copy_values<float>(x, begin, count, out);
    case DType::kF64: return copy_values<double>(x, begin, count, out);
    case DType::kF16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = load_value(x.data(), DType::kF16, begin + i);
      return;
    case DType::kBf16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = load_value(x.data(), DType::kBf16, begin + i);
      return;
    case DType::kBool:
    case DType::kU8: return copy_values<std::uint8_t>(x, begin, count, out);
    case DType::kI8: return copy_values<std::int8_t>(x, begin, count, out);
    case DType::kI16: return copy_values<std::int16_t>(x, begin, count, out);
    case DType::kU16: return copy_values<std::uint16_t>(x, begin, count, out);
    case DType::kI32: return copy_values<std::int32_t>(x, begin, count, out);
    case DType::kU32: return copy_values<std::uint32_t>(x, begin, count, out);
    case DType::kI64: return copy_values<std::int64_t>(x, begin, count, out);
    case DType::kU64: return copy_values<std::uint64_t>(x, begin, count, out);
    case DType::kF8E4m3: return decode_values(kFp8E4m3, x, begin, count, out);
    case DType::kF8E5m2: return decode_values(kFp8E5m2, x, begin, count, out);
    case DType::kF8E8m0: return decode_values(kE8m0, x, begin, count, out);
    default: throw InvalidArgument(fmt::format("values of type {} cannot be measured", name_of(x.dtype())));
  }
}

/// Count, mean and central moments (sums of powers of x - mean) of a part of the values.
struct Moments {
  double count = 0.0, mean = 0.0, second = 0.0, third = 0.0, fourth = 0.0;
  double minimum = std::numeric_limits<double>::infinity(), maximum = -std::numeric_limits<double>::infinity();
  std::int64_t nans = 0, infinities = 0, zeros = 0;
};

/// The moments of finite values, in two passes over a buffer that stays in cache. Four sums run side by side, value i
/// in sum i mod 4, so that they can be computed together.
void add_central_moments(const double* values, std::int64_t count, Moments& moments) {
  constexpr std::int64_t kLanes = 4;
  using Lanes = std::array<double, static_cast<std::size_t>(kLanes)>;
  Lanes sum{}, second{}, third{}, fourth{};
  const auto add_value = [&](std::int64_t i, std::size_t lane) {
    const double delta = values[i] - moments.mean, square = delta * delta;
    second[lane] += square;
    third[lane] += square * delta;
    fourth[lane] += square * square;
  };
  const auto total = [](const Lanes& lanes) { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); };
  const std::int64_t whole = count - count % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    for (std::size_t lane = 0; lane < sum.size(); ++lane) sum[lane] += values[i + static_cast<std::int64_t>(lane)];
  for (std::int64_t i = whole; i < count; ++i) sum[static_cast<std::size_t>(i - whole)] += values[i];
  moments.count = static_cast<double>(count);
  moments.mean = total(sum) / moments.count;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    for (std::size_t lane = 0; lane < sum.size(); ++lane) add_value(i + static_cast<std::int64_t>(lane), lane);
  for (std::int64_t i = whole; i < count; ++i) add_value(i, static_cast<std::size_t>(i - whole));
  moments.second = total(second);
  moments.third = total(third);
  moments.fourth = total(fourth);
}

Moments measure_chunk(double* values, std::int64_t count) {
  Moments moments;
  std::int64_t finite = 0;
  for (std::int64_t i = 0; i < count; ++i) finite += std::fabs(values[i]) <= std::numeric_limits<double>::max() ? 1 : 0;
  if (finite < count) {
    for (std::int64_t i = 0; i < count; ++i)
      (std::isnan(values[i]) ? moments.nans : moments.infinities) += std::isfinite(values[i]) ? 0 : 1;
    std::remove_if(values, values + count, [](double value) { return !std::isfinite(value); });
  }
  for (std::int64_t i = 0; i < finite; ++i) {
    moments.minimum = values[i] < moments.minimum ? values[i] : moments.minimum;
    moments.maximum = values[i] > moments.maximum ? values[i] : moments.maximum;
    moments.zeros += values[i] == 0.0 ? 1 : 0;
  }
  if (finite > 0) add_central_moments(values, finite, moments);
  return moments;
}

/// The moments of two parts together (Pebay 2008, equations 1.5 to 1.8 for orders 2 to 4).
Moments joined(const Moments& a, const Moments& b) {
  Moments m;
  m.minimum = std::min(a.minimum, b.minimum);
  m.maximum = std::max(a.maximum, b.maximum);
  m.nans = a.nans + b.nans;
  m.infinities = a.infinities + b.infinities;
  m.zeros = a.zeros + b.zeros;
  m.count = a.count + b.count;
  if (m.count == 0.0) return m;
  const double delta = b.mean - a.mean, step = delta / m.count, product = a.count * b.count;
  m.mean = a.mean + step * b.count;
  m.second = a.second + b.second + delta * step * product;
  m.third =
      a.third + b.third + delta * step * step * product * (a.count - b.count) + 3.0 * step * (a.count * b.second - b.count * a.second);
  m.fourth = a.fourth + b.fourth + delta * step * step * step * product * (a.count * a.count - product + b.count * b.count) +
             6.0 * step * step * (a.count * a.count * b.second + b.count * b.count * a.second) +
             4.0 * step * (a.count * b.third - b.count * a.third);
  return m;
}

/// Raises each column's amax by a run of the values, which begins anywhere in a row; NaN and infinities are left out.
void raise_columns(const double* values, std::int64_t begin, std::int64_t count, std::int64_t cols, double* amax) {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t col = (begin + done) % cols, run = std::min(count - done, cols - col);
    for (std::int64_t i = 0; i < run; ++i) {
      const double magnitude = std::fabs(values[done + i]);
      const double candidate = magnitude <= std::numeric_limits<double>::max() ? magnitude : 0.0;
      amax[col + i] = candidate > amax[col + i] ? candidate : amax[col + i];
    }
    done += run;
  }
}

}  // namespace

bool is_measurable(DType dtype) {
  return dtype != DType::kC64 && dtype != DType::kF4 && dtype != DType::kF6E2m3 && dtype != DType::kF6E3m2 && dtype != DType::kF8E4m3Fnuz &&
         dtype != DType::kF8E5m2Fnuz;
}

Statistics measure(const Tensor& x_any) {
  const Tensor x = x_any.contiguous();
  const std::int64_t count = x.size(), chunks = (count + kChunk - 1) / kChunk;
  Statistics statistics;
  statistics.count = count;
  if (count == 0) return statistics;
  const std::int64_t cols = x.rank() >= 2 ? x.shape().back() : 0;
  statistics.column_amax.assign(static_cast<std::size_t>(cols), 0.0);
  if (!is_measurable(x.dtype())) throw InvalidArgument(fmt::format("values of type {} cannot be measured", name_of(x.dtype())));
  std::vector<Moments> parts(static_cast<std::size_t>(chunks));
#pragma omp parallel if (chunks > 1)
  {
    std::vector<double> values(static_cast<std::size_t>(std::min(count, kChunk)));
    std::vector<double> columns(static_cast<std::size_t>(cols), 0.0);
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t begin = i * kChunk, size = std::min(kChunk, count - begin);
      load_values(x, begin, size, values.data());
      if (cols > 0) raise_columns(values.data(), begin, size, cols, columns.data());
      parts[static_cast<std::size_t>(i)] = measure_chunk(values.data(), size);
    }
#pragma omp critical  // a maximum does not depend on the order
    for (std::size_t col = 0; col < columns.size(); ++col)
      statistics.column_amax[col] = std::max(statistics.column_amax[col], columns[col]);
  }
  Moments all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) all = joined(all, parts[i]);
  statistics.nans = all.nans;
  statistics.infinities = all.infinities;
  statistics.zeros = all.zeros;
  if (all.count == 0.0) return statistics;
  statistics.minimum = all.minimum;
  statistics.maximum = all.maximum;
  statistics.amax = std::max(std::fabs(all.minimum), std::fabs(all.maximum));
  statistics.mean = all.mean;
  statistics.deviation = std::sqrt(all.second / all.count);
  statistics.kurtosis = all.second > 0.0 ? all.count * all.fourth / (all.second * all.second) : 0.0;
  return statistics;
}

OutlierColumns outlier_columns(const std::vector<double>& column_amax, double factor) {
  OutlierColumns result;
  if (column_amax.empty()) return result;
  std::vector<double> sorted = column_amax;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  result.median = *middle;
  if (result.median <= 0.0) return result;
  for (std::size_t col = 0; col < column_amax.size(); ++col)
    if (column_amax[col] > factor * result.median)
      result.found.emplace_back(static_cast<std::int64_t>(col), column_amax[col] / result.median);
  std::stable_sort(result.found.begin(), result.found.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

Histogram count_values(const Tensor& x_any, double low, double high, std::size_t bins) {
  const Tensor x = x_any.contiguous();
  Histogram histogram{low, high, std::vector<std::int64_t>(bins, 0)};
  if (!(high > low) || bins == 0) return histogram;
  std::vector<double> values(static_cast<std::size_t>(kChunk));
  for (std::int64_t begin = 0; begin < x.size(); begin += kChunk) {
    const std::int64_t size = std::min(kChunk, x.size() - begin);
    load_values(x, begin, size, values.data());
    for (std::int64_t i = 0; i < size; ++i) {
      const double value = values[static_cast<std::size_t>(i)];
      if (!(value >= low && value <= high)) continue;
      const double place = (value - low) / (high - low) * static_cast<double>(bins);
      ++histogram.bins[std::min(bins - 1, static_cast<std::size_t>(place))];
    }
  }
  return histogram;
}

}  // namespace narrow::report
