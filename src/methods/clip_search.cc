#include "methods/clip_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/float_environment.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

/// Factors on a rectangle's extremes: from a little beyond them, which moves a float format's grid, down to a third.
constexpr int kFirst = 44, kLast = 14, kUnit = 40;

/// The rows and columns that share a scale, within the values given.
struct Rectangle {
  const float* values = nullptr;
  std::int64_t rows = 0, width = 0, stride = 0;
};

double squared_error(const Scheme& scheme, const Rectangle& r, std::span<const double> importance, float scale, std::int32_t zero_point,
                     double bound) {
  double sum = 0.0;
  for (std::int64_t row = 0; row < r.rows && sum < bound; ++row)
    for (std::int64_t col = 0; col < r.width; ++col) {
      const float x = r.values[row * r.stride + col];
      const std::uint32_t code = quantize_element(scheme, x, scale, zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
      const double error = static_cast<double>(x) - static_cast<double>(dequantize_element(scheme, code, scale, zero_point));
      sum += (importance.empty() ? 1.0 : importance[static_cast<std::size_t>(col)]) * error * error;
    }
  return sum;
}

/// The scale that the scheme's rule would make if the extremes were `factor` times as large.
ScaleAndZero candidate(const Scheme& scheme, float lowest, float highest, double mean, float factor, float outer) {
  if (scheme.asymmetric) return scale_from_range(scheme, lowest * factor, highest * factor);
  if (scheme.rule == ScaleRule::kMeanAbsolute) return {scale_from_sum(scheme, mean * static_cast<double>(factor), 1), 0};
  return {scale_from_amax(scheme, std::max(-lowest, highest) * factor, outer), 0};
}

void search_rectangle(const Rectangle& r, std::span<const double> importance, QuantizedTensor& q, std::int64_t cell) {
  const Scheme& scheme = q.scheme;
  float lowest = 0.0f, highest = 0.0f;
  double mean = 0.0;
  for (std::int64_t row = 0; row < r.rows; ++row)
    for (std::int64_t col = 0; col < r.width; ++col) {
      const float x = r.values[row * r.stride + col];
      lowest = std::min(lowest, x);
      highest = std::max(highest, x);
      mean += std::fabs(static_cast<double>(x)) / static_cast<double>(r.rows * r.width);
    }
  if (lowest == highest) return;  // all zero: any scale is exact
  std::uint32_t best = load_scale_code(q.scales.data(), scheme.scale, cell), last = best;
  std::uint8_t* zero_point = scheme.asymmetric ? q.zero_points.as<std::uint8_t>() + cell : nullptr;
  std::int32_t last_zero = zero_point != nullptr ? *zero_point : 0;
  double least = squared_error(scheme, r, importance, effective_scale(scheme, best, q.outer_scale), last_zero, HUGE_VAL);
  for (int step = kFirst; step >= kLast; --step) {
    const ScaleAndZero made = candidate(scheme, lowest, highest, mean, static_cast<float>(step) / kUnit, q.outer_scale);
    if (made.scale.code == last && made.zero_point == last_zero) continue;
    last = made.scale.code;
    last_zero = made.zero_point;
    const double error = squared_error(scheme, r, importance, effective_scale(scheme, last, q.outer_scale), last_zero, least);
    if (error >= least) continue;
    least = error;
    best = last;
    if (zero_point != nullptr) *zero_point = made.zero_point;
  }
  store_scale_code(q.scales.data(), scheme.scale, cell, best);
}

}  // namespace

void set_scales(const float* values, std::int64_t width, std::int64_t stride, QuantizedTensor& q, std::int64_t grid_col) {
  const ScaleGrid grid = q.grid();
  QuantizeOptions options;
  if (q.scheme.has_outer_scale) options.outer_scale = q.outer_scale;
  const QuantizedTensor part =
      quantize(Tensor::borrow(static_cast<const void*>(values), DType::kF32, {q.shape.front(), width}, {stride, 1}), q.scheme, options);
  const std::size_t bytes = q.scheme.scale.bits / 8u;
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    const std::size_t cell = static_cast<std::size_t>(row * grid.cols + grid_col), from = static_cast<std::size_t>(row);
    std::memcpy(q.scales.data() + cell * bytes, part.scales.data() + from * bytes, bytes);
    if (q.scheme.asymmetric) q.zero_points.data()[cell] = part.zero_points.data()[from];
  }
}

void search_scales(const float* values, std::int64_t width, std::int64_t stride, std::span<const double> importance, QuantizedTensor& q,
                   std::int64_t grid_col) {
  const ScaleGrid grid = q.grid();
  const std::int64_t n = q.shape.front(), tile = grid.whole_tensor ? n : grid.tile_rows;
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    const FloatEnvironment environment;
    const std::int64_t first = row * tile;
    search_rectangle({values + first * stride, std::min(tile, n - first), width, stride}, importance, q, row * grid.cols + grid_col);
  }
}

}  // namespace narrow
