#include "methods/whole_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/float_environment.h"
#include "format/scale_rule.h"

namespace narrow {
namespace {

/// The finite values' range; an empty one has lowest > highest.
struct Range {
  float lowest = std::numeric_limits<float>::infinity(), highest = -std::numeric_limits<float>::infinity();
  void add(float value) {
    if (!(std::fabs(value) <= std::numeric_limits<float>::max())) return;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  float amax() const { return lowest > highest ? 0.0f : std::max(std::fabs(lowest), std::fabs(highest)); }
};

Range range_of(const Tensor& x) {
  const float* values = x.as<float>();
  const std::int64_t count = x.size();
  float lowest = std::numeric_limits<float>::infinity(), highest = -std::numeric_limits<float>::infinity();
#pragma omp parallel reduction(min : lowest) reduction(max : highest)
  {
    const FloatEnvironment environment;
    Range mine;
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < count; ++i) mine.add(values[i]);
    lowest = mine.lowest;
    highest = mine.highest;
  }
  return {lowest, highest};
}

/// One range per column of each matrix; threads share the columns.
void add_columns(const Tensor& x, std::int64_t matrices, std::int64_t rows, std::int64_t cols, Range* ranges) {
  constexpr std::int64_t kStripe = 256;
  const float* values = x.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < cols; begin += kStripe) {
    const FloatEnvironment environment;
    const std::int64_t end = std::min(cols, begin + kStripe);
    for (std::int64_t row = 0; row < matrices * rows; ++row)
      for (std::int64_t col = begin; col < end; ++col) ranges[row / rows * cols + col].add(values[row * cols + col]);
  }
}

}  // namespace

bool has_whole_scales(const Scheme& scheme, const QuantizeOptions& options) {
  if (options.rounding == Rounding::kStochastic || options.scales || options.outer_scale || scheme.rule != ScaleRule::kLargest)
    return false;
  const bool by_rows = scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows > 0;
  if (scheme.has_outer_scale) return by_rows;
  const bool by_cols = scheme.granularity == Granularity::col();
  return scheme.granularity.kind == Granularity::Kind::kTensor || by_cols;
}

Reading plan_reading(const Scheme& scheme, const QuantizeOptions& options, const Shape& shape, DType dtype, std::uint64_t chunk_bytes) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(element_count(shape)) * static_cast<std::uint64_t>(bits_of(dtype)) / 8;
  if (bytes > chunk_bytes && has_whole_scales(scheme, options)) return {true, dequantize_chunks(scheme, shape, dtype, chunk_bytes)};
  return {false, quantize_chunks(scheme, options, shape, dtype, chunk_bytes)};
}

WholeScales::WholeScales(const Scheme& scheme, const Shape& shape, const std::vector<RowChunk>& chunks,
                         const std::function<Tensor(const RowChunk&)>& read)
    : scheme_(scheme) {
  const ScaleGrid grid = scale_grid(scheme, shape);
  const bool by_cols = scheme.granularity == Granularity::col();
  grid_cols_ = grid.cols;
  std::vector<Range> ranges(by_cols ? static_cast<std::size_t>(grid.count()) : 1);
  for (const RowChunk& chunk : chunks) {
    const Tensor x = convert(read(chunk), DType::kF32);
    if (by_cols) {
      const MatrixShape part = as_matrices(chunk.shape);
      add_columns(x, part.matrices, part.rows, part.cols, ranges.data() + chunk.first_grid_row * grid.cols);
    } else {
      const Range range = range_of(x);
      ranges[0].add(range.lowest);
      ranges[0].add(range.highest);
    }
  }
  const FloatEnvironment environment;
  if (scheme.has_outer_scale) {
    outer_scale_ = outer_scale_from_amax(scheme, ranges[0].amax());
    return;
  }
  for (const Range& range : ranges) {
    if (scheme.asymmetric) {
      const ScaleAndZero made =
          range.lowest > range.highest ? scale_from_range(scheme, 0.0f, 0.0f) : scale_from_range(scheme, range.lowest, range.highest);
      scales_.push_back(made.scale.effective);
      zero_points_.push_back(made.zero_point);
    } else {
      scales_.push_back(scale_from_amax(scheme, range.amax(), 1.0f).effective);
    }
  }
}

QuantizeOptions WholeScales::options_for(const RowChunk& chunk, const QuantizeOptions& options) const {
  QuantizeOptions result = options;
  result.outer_scale = outer_scale_;
  if (scales_.empty()) return result;
  const std::int64_t first = chunk.first_grid_row * grid_cols_, cells = chunk.grid_rows * grid_cols_;
  result.scales = Tensor::borrow(static_cast<const void*>(scales_.data() + first), DType::kF32, {cells});
  if (scheme_.asymmetric) result.zero_points = Tensor::borrow(static_cast<const void*>(zero_points_.data() + first), DType::kU8, {cells});
  return result;
}

}  // namespace narrow
