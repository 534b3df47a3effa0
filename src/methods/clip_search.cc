#include "methods/clip_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/float_environment.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

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

void search_rectangle(const Rectangle& r, std::span<const double> importance, QuantizedTensor& q, std::int64_t cell,
                      std::vector<ScaleAndZero>& candidates) {
  const Scheme& scheme = q.scheme;
  Extremes extremes;
  for (std::int64_t row = 0; row < r.rows; ++row)
    for (std::int64_t col = 0; col < r.width; ++col) {
      const float x = r.values[row * r.stride + col];
      extremes.lowest = std::min(extremes.lowest, x);
      extremes.highest = std::max(extremes.highest, x);
      extremes.mean += std::fabs(static_cast<double>(x)) / static_cast<double>(r.rows * r.width);
    }
  scale_candidates(scheme, extremes, q.outer_scale, candidates);
  std::uint8_t* zero_point = scheme.asymmetric ? q.zero_points.as<std::uint8_t>() + cell : nullptr;
  const float own = effective_scale(scheme, load_scale_code(q.scales.data(), scheme.scale, cell), q.outer_scale);
  double least = squared_error(scheme, r, importance, own, zero_point != nullptr ? *zero_point : 0, HUGE_VAL);
  for (const ScaleAndZero& made : candidates) {
    const float scale = effective_scale(scheme, made.scale.code, q.outer_scale);
    const double error = squared_error(scheme, r, importance, scale, made.zero_point, least);
    if (error >= least) continue;
    least = error;
    store_scale_code(q.scales.data(), scheme.scale, cell, made.scale.code);
    if (zero_point != nullptr) *zero_point = made.zero_point;
  }
}

}  // namespace

void scale_candidates(const Scheme& scheme, const Extremes& extremes, float outer, std::vector<ScaleAndZero>& candidates) {
  candidates.clear();
  if (extremes.lowest == extremes.highest) return;
  for (int i = 0; i < kScaleCandidates; ++i) {
    const ScaleAndZero made = scale_candidate(scheme, extremes, i, outer);
    if (candidates.empty() || made.scale.code != candidates.back().scale.code || made.zero_point != candidates.back().zero_point)
      candidates.push_back(made);
  }
}

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
#pragma omp parallel
  {
    const FloatEnvironment environment;
    std::vector<ScaleAndZero> candidates;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < grid.rows; ++row) {
      const std::int64_t first = row * tile;
      search_rectangle({values + first * stride, std::min(tile, n - first), width, stride}, importance, q, row * grid.cols + grid_col,
                       candidates);
    }
  }
}

}  // namespace narrow
