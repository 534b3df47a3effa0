/// Error metrics and conversions between the wide float types.

#include <fmt/format.h>

#include "device/float_environment.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "narrow/error.h"
#include "narrow/quantize.h"
#include "ops/error_accumulator.h"

namespace narrow {
namespace {

void require_comparable(const Tensor& x, const Tensor& y) {
  if (!is_floating(x.dtype()) || !is_floating(y.dtype()) || x.shape() != y.shape())
    throw InvalidArgument(fmt::format("compare: {} {} and {} {} are not float tensors of one shape", name_of(x.dtype()),
                                      to_string(x.shape()), name_of(y.dtype()), to_string(y.shape())));
}

}  // namespace

ErrorMetrics compare(const Tensor& x_any, const Tensor& y_any) {
  require_comparable(x_any, y_any);
  ErrorAccumulator sums;
  sums.add(x_any.contiguous(), y_any.contiguous());
  return sums.metrics();
}

double clipped_share(const Tensor& x_any, const QuantizedTensor& q) {
  if (x_any.shape() != q.shape)
    throw InvalidArgument(
        fmt::format("clipped_share: {} is not the shape {} of the quantized tensor", to_string(x_any.shape()), to_string(q.shape)));
  if (x_any.size() == 0) return 0.0;
  const Tensor x = x_any.contiguous();
  const ScaleGrid grid = q.grid();
  const MatrixShape matrix = as_matrices(q.shape);
  const std::int64_t rows = matrix.total_rows();
  const float highest = static_cast<float>(q.scheme.asymmetric ? q.scheme.element.max_code() : q.scheme.element.largest());
  std::int64_t clipped = 0;
#pragma omp parallel for schedule(static) reduction(+ : clipped)
  for (std::int64_t row = 0; row < rows; ++row) {
    const FloatEnvironment environment;
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      const std::int64_t cell = grid.grid_row(row) * grid.cols + grid.grid_col(col);
      const float scale =
          q.scheme.has_scales() ? effective_scale(q.scheme, load_scale_code(q.scales.data(), q.scheme.scale, cell), q.outer_scale) : 1.0f;
      const float zero = q.scheme.asymmetric ? static_cast<float>(q.zero_points.as<std::uint8_t>()[cell]) : 0.0f;
      const float quotient = load_value(x.data(), x.dtype(), row * matrix.cols + col) / scale;
      // A quotient that rounds back into the range is not clipped: half a step of room on integers.
      const float room = q.scheme.element.is_integer() ? static_cast<float>(0.5 * power_of_two(-q.scheme.element.fraction_bits)) : 0.0f;
      const float low = q.scheme.asymmetric ? -zero : -highest, high = highest - zero;
      clipped += quotient > high + room || quotient < low - room ? 1 : 0;
    }
  }
  return static_cast<double>(clipped) / static_cast<double>(x.size());
}

Tensor convert(const Tensor& x_any, DType dtype, Overflow overflow) {
  if (!is_floating(x_any.dtype()) || !is_floating(dtype))
    throw InvalidArgument(
        fmt::format("convert: {} to {} is not a conversion between F32, F16 and BF16", name_of(x_any.dtype()), name_of(dtype)));
  const Tensor x = x_any.contiguous();
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(dtype, x.shape());
  const std::int64_t count = x.size();
  if (x.dtype() == DType::kBf16 && dtype == DType::kF32) {  // the type most weights come in: a shift
    const std::uint16_t* from = x.as<std::uint16_t>();
    std::uint32_t* to = y.as<std::uint32_t>();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint32_t>(from[i]) << 16;
    return y;
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) store_value(y.data(), dtype, i, load_value(x.data(), x.dtype(), i), overflow);
  return y;
}

}  // namespace narrow
