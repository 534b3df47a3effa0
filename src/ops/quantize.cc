/// quantize, dequantize and what is made of them: validate, find a kernel, allocate, run tiles on threads.

#include "narrow/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "dispatch/quantize.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "narrow/error.h"
#include "ops/tiles.h"

namespace narrow {
namespace {

std::size_t scale_bytes(const Format& format) { return format.bits / 8u; }

/// x as rows of contiguous columns with one row stride, copied only where its strides do not allow it.
Tensor with_plain_rows(const Tensor& x) {
  if (x.rank() == 0 || x.size() == 0 || x.is_contiguous()) return x;
  const Shape& shape = x.shape();
  const Shape& strides = x.strides();
  const std::size_t last = shape.size() - 1;
  bool plain = shape[last] == 1 || strides[last] == 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) plain = plain && (shape[i] == 1 || strides[i] == strides[i + 1] * shape[i + 1]);
  return plain ? x : x.contiguous();
}

void require_floating(const char* op, DType dtype) {
  if (!is_floating(dtype)) throw InvalidArgument(fmt::format("{}: {} values are not supported; use F32, F16 or BF16", op, name_of(dtype)));
}

void require_cpu(const char* op, Device device) {
  if (!device.is_cpu()) throw Unsupported(fmt::format("{}: this build computes on the CPU; copy the tensor there first", op));
}

void merge(TileStats& all, const TileStats& one) {
  all.amax = std::max(all.amax, one.amax);
  all.minimum = std::min(all.minimum, one.minimum);
  all.maximum = std::max(all.maximum, one.maximum);
  all.has_nan = all.has_nan || one.has_nan;
  all.has_infinity = all.has_infinity || one.has_infinity;
}

/// Calls work(tile) for every tile on all threads and merges what it returns. max and or do not depend on the order.
template <typename Work>
TileStats for_each_tile(const std::vector<Tile>& tiles, const Work& work) {
  TileStats all;
  const std::int64_t count = static_cast<std::int64_t>(tiles.size());
#pragma omp parallel if (count > 1)
  {
    const FloatEnvironment environment;
    TileStats mine;
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < count; ++i) merge(mine, work(tiles[static_cast<std::size_t>(i)]));
#pragma omp critical(narrow_merge_tile_stats)
    merge(all, mine);
  }
  return all;
}

bool keeps(const Scheme& scheme, const QuantizeOptions& options, float x) {
  if (std::isnan(x)) return scheme.element.has_nan();
  if (std::isinf(x)) return scheme.element.has_infinity() && options.overflow == Overflow::kIeee;
  return true;
}

/// The sentence for values that the format cannot hold; looks for the first one.
[[noreturn]] void throw_nonfinite(const QuantizeProblem& problem, const QuantizeOptions& options) {
  std::int64_t count = 0, first = -1;
  for (std::int64_t row = 0; row < problem.rows; ++row)
    for (std::int64_t col = 0; col < problem.cols; ++col) {
      if (keeps(problem.scheme, options, load_value(problem.x, problem.dtype, row * problem.row_stride + col))) continue;
      if (count++ == 0) first = row * problem.cols + col;
    }
  throw InvalidArgument(fmt::format(
      "quantize: {} value{} NaN or infinite, the first at element {}; {} cannot hold them (saturate them by choice, or mend the tensor)",
      count, count == 1 ? " is" : "s are", first, problem.scheme.to_string()));
}

/// Scales and zero points that the caller knows, stored in the scheme's own format.
void use_given_scales(QuantizeProblem& problem, const QuantizeOptions& options) {
  const std::int64_t cells = problem.grid.count();
  const Tensor& scales = *options.scales;
  if (scales.dtype() != DType::kF32 || !scales.is_contiguous() || scales.size() != cells || !scales.device().is_cpu())
    throw InvalidArgument(
        fmt::format("quantize: static scales must be {} contiguous fp32 values for {}", cells, problem.scheme.to_string()));
  if (problem.scheme.asymmetric != options.zero_points.has_value())
    throw InvalidArgument("quantize: static zero points belong to asymmetric schemes, and those need them");
  if (problem.scheme.has_outer_scale) throw Unsupported("quantize: static scales for a scheme with an outer scale are not defined");
  for (std::int64_t i = 0; i < cells; ++i) {
    const float scale = scales.as<float>()[i];
    if (!(scale > 0.0f) || std::isinf(scale))
      throw InvalidArgument(fmt::format("quantize: static scale {} is {}; scales are positive and finite", i, scale));
    store_scale_code(problem.scales, problem.scheme.scale, i, store_scale(problem.scheme.scale, scale, 1.0f).code);
  }
  if (options.zero_points) {
    const Tensor& zeros = *options.zero_points;
    if (zeros.dtype() != DType::kU8 || !zeros.is_contiguous() || zeros.size() != cells)
      throw InvalidArgument(fmt::format("quantize: static zero points must be {} contiguous bytes", cells));
    for (std::int64_t i = 0; i < cells; ++i) {
      const std::uint8_t zero = zeros.as<std::uint8_t>()[i];
      if (zero > problem.scheme.element.max_code())
        throw InvalidArgument(
            fmt::format("quantize: zero point {} is {}, beyond the largest code {}", i, zero, problem.scheme.element.max_code()));
      problem.zero_points[i] = zero;
    }
  }
  problem.scales_given = true;
}

/// One scale for everything: measured by all threads first. int1's mean keeps its own fixed order in the kernel.
bool is_single_scale(const QuantizeProblem& problem) {
  return problem.scheme.has_scales() && problem.grid.count() == 1 && problem.scheme.rule != ScaleRule::kMeanAbsolute;
}

void make_single_scale(QuantizeProblem& problem, const TileStats& stats) {
  const ScaleAndZero made = problem.scheme.asymmetric ? scale_from_range(problem.scheme, stats.minimum, stats.maximum)
                                                      : ScaleAndZero{scale_from_amax(problem.scheme, stats.amax, problem.outer_scale), 0};
  store_scale_code(problem.scales, problem.scheme.scale, 0, made.scale.code);
  if (problem.scheme.asymmetric) problem.zero_points[0] = made.zero_point;
  problem.scales_given = true;
}

void require_sizes(const QuantizedTensor& q) {
  const std::size_t cells = static_cast<std::size_t>(q.grid().count());
  const auto expect = [&](const char* part, std::size_t actual, std::size_t expected) {
    if (actual != expected)
      throw InvalidArgument(
          fmt::format("{} of {} in {} take {} bytes, not {}", part, to_string(q.shape), q.scheme.to_string(), expected, actual));
  };
  expect("codes", q.codes.size(), static_cast<std::size_t>(as_matrices(q.shape).total_rows()) * q.row_bytes());
  expect("scales", q.scales.size(), cells * scale_bytes(q.scheme.scale));
  expect("zero points", q.zero_points.size(), q.scheme.asymmetric ? cells : 0);
}

}  // namespace

std::size_t packed_row_bytes(const Scheme& scheme, std::int64_t cols) { return packed_bytes(cols, scheme.element.bits); }

/// How many tiles cover a size. The usual size + tile - 1 overflows on tiles that a caller made without a string.
static std::int64_t tiles_over(std::int64_t size, std::int64_t tile) { return size / tile + (size % tile != 0 ? 1 : 0); }

ScaleGrid scale_grid(const Scheme& scheme, const Shape& shape) {
  const MatrixShape matrix = as_matrices(shape);
  ScaleGrid grid;
  grid.matrix_rows = std::max<std::int64_t>(matrix.rows, 1);
  if (scheme.granularity.kind != Granularity::Kind::kRectangle) {
    const std::int64_t count = scheme.has_scales() ? 1 : 0;
    grid.rows = grid.cols = count;
    grid.tile_rows = grid.matrix_rows;
    grid.tile_cols = std::max<std::int64_t>(matrix.cols, 1);
    grid.tiles_per_matrix = count;
    grid.whole_tensor = true;
    return grid;
  }
  const std::int64_t rows = scheme.granularity.rows, cols = scheme.granularity.cols;
  grid.tile_rows = rows == 0 ? grid.matrix_rows : rows;
  grid.tile_cols = cols == 0 ? std::max<std::int64_t>(matrix.cols, 1) : cols;
  grid.tiles_per_matrix = tiles_over(matrix.rows, grid.tile_rows);
  grid.rows = matrix.matrices * grid.tiles_per_matrix;
  grid.cols = tiles_over(matrix.cols, grid.tile_cols);
  return grid;
}

std::size_t quantized_bytes(const Scheme& scheme, const Shape& shape) {
  const MatrixShape matrix = as_matrices(shape);
  const std::size_t cells = static_cast<std::size_t>(scale_grid(scheme, shape).count());
  const std::size_t codes = static_cast<std::size_t>(matrix.total_rows()) * packed_row_bytes(scheme, matrix.cols);
  return codes + cells * (scale_bytes(scheme.scale) + (scheme.asymmetric ? 1 : 0)) + (scheme.has_outer_scale ? sizeof(float) : 0);
}

ScaleGrid QuantizedTensor::grid() const { return scale_grid(scheme, shape); }
std::size_t QuantizedTensor::row_bytes() const { return packed_row_bytes(scheme, as_matrices(shape).cols); }
std::size_t QuantizedTensor::byte_size() const { return quantized_bytes(scheme, shape); }

QuantizedTensor allocate_quantized(const Scheme& scheme, Shape shape) {
  if (scheme.element.bits > 16) throw InvalidArgument(fmt::format("quantize: {} is not narrower than its input", scheme.to_string()));
  QuantizedTensor q;
  q.scheme = scheme;
  q.shape = std::move(shape);
  const std::size_t cells = static_cast<std::size_t>(q.grid().count());
  q.codes = Buffer::allocate(static_cast<std::size_t>(as_matrices(q.shape).total_rows()) * q.row_bytes());
  q.scales = Buffer::allocate(cells * scale_bytes(scheme.scale));
  q.zero_points = Buffer::allocate(scheme.asymmetric ? cells : 0);
  return q;
}

QuantizedTensor quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  const FloatEnvironment environment;
  require_floating("quantize", x.dtype());
  require_cpu("quantize", x.device());
  QuantizedTensor q = allocate_quantized(scheme, x.shape());
  quantize_into(x, q, options);
  return q;
}

void quantize_into(const Tensor& x, QuantizedTensor& q, const QuantizeOptions& options) {
  require_floating("quantize", x.dtype());
  require_cpu("quantize", x.device());
  require_cpu("quantize", q.device());
  if (x.shape() != q.shape)
    throw InvalidArgument(fmt::format("quantize: {} does not go into a quantized tensor of {}", to_string(x.shape()), to_string(q.shape)));
  require_sizes(q);
  const Scheme& scheme = q.scheme;
  if (options.outer_scale && (!scheme.has_outer_scale || !(*options.outer_scale > 0.0f) || std::isinf(*options.outer_scale)))
    throw InvalidArgument(fmt::format("quantize: the outer scale {} does not fit {}", *options.outer_scale, scheme.to_string()));
  const Tensor plain = with_plain_rows(x);
  const MatrixShape matrix = as_matrices(x.shape());

  QuantizeProblem problem;
  problem.x = plain.data();
  problem.dtype = x.dtype();
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.row_stride = plain.rank() >= 2 && plain.size() > 0 ? plain.strides()[static_cast<std::size_t>(plain.rank()) - 2] : matrix.cols;
  if (matrix.rows == 1 && plain.rank() >= 2 && plain.is_contiguous()) problem.row_stride = matrix.cols;
  problem.scheme = scheme;
  problem.grid = q.grid();
  problem.rounding = options.rounding;
  problem.overflow = options.overflow;
  problem.seed = options.seed;
  problem.row_bytes = q.row_bytes();
  problem.codes = q.codes.as<std::uint8_t>();
  problem.scales = q.scales.data();
  problem.zero_points = q.zero_points.as<std::uint8_t>();
  q.outer_scale = 1.0f;

  if (options.scales) use_given_scales(problem, options);
  const QuantizeKernel& kernel = find(problem);
  const auto measure = [&](const Tile& tile) { return kernel.measure(problem, tile); };

  TileStats stats;
  bool measured = false;
  const bool single = !problem.scales_given && is_single_scale(problem);
  if (single || scheme.has_outer_scale) {
    stats = for_each_tile(split_tiles(problem.grid, problem.rows, problem.cols, true), measure);
    measured = true;
    if (scheme.has_outer_scale)
      q.outer_scale = problem.outer_scale = options.outer_scale.value_or(outer_scale_from_amax(scheme, stats.amax));
    if (single) make_single_scale(problem, stats);
  }
  const bool separately = !measured && (problem.scales_given || !scheme.has_scales());
  const std::vector<Tile> tiles = split_tiles(problem.grid, problem.rows, problem.cols, problem.scales_given || !scheme.has_scales());
  merge(stats, for_each_tile(tiles, [&](const Tile& tile) {
          const TileStats before = separately ? kernel.measure(problem, tile) : TileStats{};
          TileStats result = kernel.run(problem, tile);
          merge(result, before);
          return result;
        }));

  if (options.nonfinite == NonFinite::kError) {
    const bool lost_nan = stats.has_nan && !keeps(scheme, options, std::numeric_limits<float>::quiet_NaN());
    const bool lost_infinity = stats.has_infinity && !keeps(scheme, options, std::numeric_limits<float>::infinity());
    if (lost_nan || lost_infinity) throw_nonfinite(problem, options);
  }
}

Tensor dequantize(const QuantizedTensor& q, DType dtype) {
  require_floating("dequantize", dtype);
  Tensor y = Tensor::empty(dtype, q.shape);
  dequantize_into(q, y);
  return y;
}

void dequantize_into(const QuantizedTensor& q, Tensor& y) {
  require_floating("dequantize", y.dtype());
  require_cpu("dequantize", q.device());
  require_cpu("dequantize", y.device());
  if (y.shape() != q.shape || !y.is_contiguous())
    throw InvalidArgument(fmt::format("dequantize: {} is not a contiguous tensor of shape {}", to_string(y.shape()), to_string(q.shape)));
  const MatrixShape matrix = as_matrices(q.shape);
  DequantizeProblem problem;
  problem.codes = q.codes.as<std::uint8_t>();
  problem.row_bytes = q.row_bytes();
  problem.scales = q.scales.data();
  problem.zero_points = q.zero_points.as<std::uint8_t>();
  problem.outer_scale = q.outer_scale;
  problem.scheme = q.scheme;
  problem.grid = q.grid();
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.y = y.data();
  problem.dtype = y.dtype();
  const DequantizeKernel& kernel = find(problem);
  for_each_tile(split_tiles(problem.grid, problem.rows, problem.cols, true), [&](const Tile& tile) {
    kernel.run(problem, tile);
    return TileStats{};
  });
}

QuantizedTensor requantize(const QuantizedTensor& q, const Scheme& scheme, const QuantizeOptions& options) {
  return quantize(dequantize(q, DType::kF32), scheme, options);
}

Tensor fake_quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  return dequantize(quantize(x, scheme, options), x.dtype());
}

QuantizedTensor assemble(const Scheme& scheme, Shape shape, Buffer codes, Buffer scales, Buffer zero_points, float outer_scale) {
  element_count(shape);
  QuantizedTensor q{scheme, std::move(shape), std::move(codes), std::move(scales), std::move(zero_points), outer_scale};
  require_sizes(q);
  if (!std::isfinite(outer_scale) || (!scheme.has_outer_scale && outer_scale != 1.0f))
    throw InvalidArgument(fmt::format("outer scale {} does not fit {}", outer_scale, scheme.to_string()));
  return q;
}

}  // namespace narrow
