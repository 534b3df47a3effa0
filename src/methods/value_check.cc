#include "methods/value_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/float_environment.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

/// What the bound needs of a scheme, in units of its scale.
struct Bound {
  float low = 0.0f, high = 0.0f;  ///< quotients beyond are clipped
  float step = 0.0f;              ///< absolute part
  float relative = 0.0f;          ///< floats: part proportional to |x|
};

Bound bound_of(const Scheme& scheme) {
  const Format& element = scheme.element;
  constexpr float kRoom = 1.0f + 0x1p-18f;  // divisions and products round
  Bound bound;
  bound.high = static_cast<float>(scheme.asymmetric ? element.max_code() : element.largest());
  bound.low = scheme.asymmetric ? 0.0f : -bound.high;
  if (element.is_integer()) {
    const float unit = static_cast<float>(power_of_two(-element.fraction_bits));
    bound.high += 0.5f * unit;  // still rounds to the largest code
    bound.low -= 0.5f * unit;
    bound.step = unit * kRoom;
  } else if (element.is_float()) {
    bound.step = static_cast<float>(element.smallest_positive()) * kRoom;
    bound.relative = static_cast<float>(power_of_two(-element.mantissa_bits)) * kRoom;
  } else {
    for (std::uint32_t code = 1; code < element.code_count(); ++code)
      bound.step = std::max(bound.step, (decode(element, code) - decode(element, code - 1)) * kRoom);
  }
  return bound;
}

struct Counts {
  std::int64_t clipped = 0, violations = 0;
};

bool violates(float x, float y, float step, float relative) {
  return std::fabs(x - y) > std::max(step, std::fabs(x) * relative) + 0x1p-148f;
}

Counts check_run(const float* x, const float* y, std::int64_t count, float scale, float low, float high, const Bound& bound) {
  std::int32_t clipped = 0, violations = 0;
  const float step = bound.step * scale;
  for (std::int64_t i = 0; i < count; ++i) {
    const float quotient = x[i] / scale;
    const std::int32_t out = static_cast<std::int32_t>(quotient > high) | static_cast<std::int32_t>(quotient < low);
    clipped += out;
    violations += static_cast<std::int32_t>(violates(x[i], y[i], step, bound.relative)) & (1 - out);
  }
  return {clipped, violations};
}

}  // namespace

ValueCheck check_values(const Tensor& x, const Tensor& y, const QuantizedTensor& q) {
  constexpr std::int64_t kLongestRun = std::int64_t{1} << 30;  // counts of a run fit 32 bits
  const Bound bound = bound_of(q.scheme);
  const ScaleGrid grid = q.grid();
  const MatrixShape matrix = as_matrices(q.shape);
  const std::int64_t cols = matrix.cols, rows = cols == 0 ? 0 : matrix.total_rows();  // a file may declare 2^50 rows of nothing
  const std::int64_t run = std::min(kLongestRun, std::max<std::int64_t>(1, grid.whole_tensor ? cols : grid.tile_cols));
  const float* xs = x.as<float>();
  const float* ys = y.as<float>();
  std::int64_t clipped = 0, first = std::numeric_limits<std::int64_t>::max();
#pragma omp parallel for schedule(static) reduction(+ : clipped) reduction(min : first)
  for (std::int64_t row = 0; row < rows; ++row) {
    const FloatEnvironment environment;
    for (std::int64_t col = 0; col < cols; col += run) {
      const std::int64_t cell = q.scheme.has_scales() ? grid.grid_row(row) * grid.cols + grid.grid_col(col) : 0;
      const float scale =
          q.scheme.has_scales() ? effective_scale(q.scheme, load_scale_code(q.scales.data(), q.scheme.scale, cell), q.outer_scale) : 1.0f;
      const float zero = q.scheme.asymmetric ? static_cast<float>(q.zero_points.as<std::uint8_t>()[cell]) : 0.0f;
      const std::int64_t begin = row * cols + col, count = std::min(run, cols - col);
      const Counts counts = check_run(xs + begin, ys + begin, count, scale, bound.low - zero, bound.high - zero, bound);
      clipped += counts.clipped;
      for (std::int64_t i = begin; counts.violations > 0 && i < begin + count; ++i) {
        const float quotient = xs[i] / scale;
        if (quotient > bound.high - zero || quotient < bound.low - zero || !violates(xs[i], ys[i], bound.step * scale, bound.relative))
          continue;
        first = std::min(first, i);
        break;
      }
    }
  }
  return {clipped, first == std::numeric_limits<std::int64_t>::max() ? -1 : first};
}

}  // namespace narrow
