/// The meaning of quantize: one obvious loop per rectangle. Never optimised.

#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow::reference {
namespace {

bool accepts(const QuantizeProblem&) { return true; }

float value_at(const QuantizeProblem& problem, std::int64_t row, std::int64_t col) {
  return load_value(problem.x, problem.dtype, row * problem.row_stride + col);
}

TileStats measure(const QuantizeProblem& problem, const Tile& tile) {
  TileStats stats;
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row)
    for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
      const float x = value_at(problem, row, col);
      if (std::isnan(x)) {
        stats.has_nan = true;
      } else if (std::isinf(x)) {
        stats.has_infinity = true;
      } else {
        stats.amax = std::max(stats.amax, std::fabs(x));
        stats.minimum = std::min(stats.minimum, x);
        stats.maximum = std::max(stats.maximum, x);
      }
    }
  return stats;
}

/// sum |x| over a rectangle in the order that format/scale_rule.h fixes.
double absolute_sum(const QuantizeProblem& problem, const Tile& tile) {
  double total = 0.0;
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    double row_sum = 0.0;
    for (std::int64_t begin = tile.col_begin; begin < tile.col_end; begin += kSumSegment) {
      const std::int64_t end = std::min<std::int64_t>(begin + kSumSegment, tile.col_end);
      std::array<double, kSumLanes> lanes{};
      for (std::int64_t col = begin; col < end; ++col) {
        const float x = value_at(problem, row, col);
        lanes[static_cast<std::size_t>((col - begin) % kSumLanes)] += std::isfinite(x) ? std::fabs(static_cast<double>(x)) : 0.0;
      }
      for (std::size_t half = kSumLanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      row_sum += lanes[0];
    }
    total += row_sum;
  }
  return total;
}

ScaleAndZero make_scale(const QuantizeProblem& problem, const Tile& rectangle, const TileStats& stats) {
  const Scheme& scheme = problem.scheme;
  if (scheme.asymmetric) return scale_from_range(scheme, stats.minimum, stats.maximum);
  if (scheme.rule == ScaleRule::kMeanAbsolute) {
    const std::int64_t count = (rectangle.row_end - rectangle.row_begin) * (rectangle.col_end - rectangle.col_begin);
    return {scale_from_sum(scheme, absolute_sum(problem, rectangle), count), 0};
  }
  return {scale_from_amax(scheme, stats.amax, problem.outer_scale), 0};
}

void encode_rectangle(const QuantizeProblem& problem, const Tile& rectangle, float scale, std::int32_t zero_point) {
  const int bits = problem.scheme.element.bits;
  for (std::int64_t row = rectangle.row_begin; row < rectangle.row_end; ++row)
    for (std::int64_t col = rectangle.col_begin; col < rectangle.col_end; ++col) {
      const std::uint32_t random =
          problem.rounding == Rounding::kStochastic ? random_bits(problem.seed, static_cast<std::uint64_t>(row * problem.cols + col)) : 0u;
      const std::uint32_t code =
          quantize_element(problem.scheme, value_at(problem, row, col), scale, zero_point, problem.rounding, problem.overflow, random);
      write_code(problem.codes + static_cast<std::size_t>(row) * problem.row_bytes, col, bits, code);
    }
}

TileStats run(const QuantizeProblem& problem, const Tile& tile) {
  const int bits = problem.scheme.element.bits;
  const std::size_t first_byte = packed_bytes(tile.col_begin, bits), last_byte = packed_bytes(tile.col_end, bits);
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    std::uint8_t* codes = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes;
    std::fill(codes + first_byte, codes + last_byte, std::uint8_t{0});
  }

  TileStats all;
  for (std::int64_t row = tile.row_begin; row < tile.row_end;) {
    std::int64_t row_end = row;  // the rows of one grid row
    while (row_end < tile.row_end && problem.grid.grid_row(row_end) == problem.grid.grid_row(row)) ++row_end;
    for (std::int64_t col = tile.col_begin; col < tile.col_end;) {
      const std::int64_t col_end =
          problem.grid.whole_tensor ? tile.col_end : std::min(tile.col_end, (problem.grid.grid_col(col) + 1) * problem.grid.tile_cols);
      const Tile rectangle{row, row_end, col, col_end};
      const TileStats stats = measure(problem, rectangle);
      const std::int64_t cell = problem.grid.grid_row(row) * problem.grid.cols + problem.grid.grid_col(col);
      float scale = 1.0f;
      std::int32_t zero_point = 0;
      if (problem.scheme.has_scales()) {
        if (!problem.scales_given) {
          const ScaleAndZero made = make_scale(problem, rectangle, stats);
          store_scale_code(problem.scales, problem.scheme.scale, cell, made.scale.code);
          if (problem.scheme.asymmetric) problem.zero_points[cell] = made.zero_point;
        }
        scale = effective_scale(problem.scheme, load_scale_code(problem.scales, problem.scheme.scale, cell), problem.outer_scale);
        if (problem.scheme.asymmetric) zero_point = problem.zero_points[cell];
      }
      encode_rectangle(problem, rectangle, scale, zero_point);
      all.has_nan = all.has_nan || stats.has_nan;
      all.has_infinity = all.has_infinity || stats.has_infinity;
      all.amax = std::max(all.amax, stats.amax);
      all.minimum = std::min(all.minimum, stats.minimum);
      all.maximum = std::max(all.maximum, stats.maximum);
      col = col_end;
    }
    row = row_end;
  }
  return all;
}

}  // namespace

const QuantizeKernel kQuantize{"ref_quantize", Isa::kScalar, accepts, measure, run};

}  // namespace narrow::reference
