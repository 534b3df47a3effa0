/// The meaning of matmul: one obvious loop per element. Never optimised.
///
/// integer x integer: exact sums of (code_x - zero_x) * (code_w - zero_w) over each run of k in which neither scale changes;
///   v = sum over the runs, in order, v = fma(sum, s, v), s the product of the scales that vary along k;
///   then v * (scale_x * scale_w) of the scales that do not. Without any scale along k: v = sum * (scale_x * scale_w).
/// other pairs: y64 = sum of x * w over the exactly dequantized values, in fp64, rounded once to fp32; in_fp64: over those of dequantize,
///   which are fp32.

#include "kernels/matmul.h"

#include <algorithm>
#include <cmath>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/activation.h"
#include "kernels/panels.h"
#include "kernels/storage.h"

namespace narrow::reference {
namespace {

bool accepts(const MatmulProblem&) { return true; }
std::size_t no_bytes(const MatmulProblem&) { return 0; }
void no_begin(const MatmulProblem&, std::byte*) {}
void no_pack(const MatmulProblem&, std::int64_t, std::int64_t, std::byte*) {}

/// One side of the product, element by element.
struct Element {
  double code_value = 0.0;  ///< decoded, the zero point taken off
  double scale = 1.0;
};

Element activation_at(const ActivationView& x, std::int64_t row, std::int64_t k) {
  if (!x.quantized) return {load_value(x.data, x.dtype, row * x.row_stride + k), 1.0};
  const std::uint32_t code = read_code(x.codes + static_cast<std::size_t>(row) * x.row_bytes, k, x.scheme.element.bits);
  const std::int64_t cell = x.grid.grid_row(row) * x.grid.cols + x.grid.grid_col(k);
  const float scale =
      x.scheme.has_scales() ? effective_scale(x.scheme, load_scale_code(x.scales, x.scheme.scale, cell), x.outer_scale) : 1.0f;
  if (x.scheme.asymmetric) return {static_cast<double>(code) - x.zero_points[cell], scale};
  return {decode(x.scheme.element, code), scale};
}

Element weight_at(const MatmulProblem& problem, std::int64_t n, std::int64_t k) {
  const WeightView& w = problem.w;
  const Format& element = w.scheme.element;
  const bool panels = w.layout == WeightLayout::kPanels;
  std::uint32_t code = 0;
  if (panels) {
    const int bits = panels::stored_bits(element);
    const auto* words = reinterpret_cast<const std::uint32_t*>(w.codes);
    code = panels::from_stored(
        element, panels::read_stored(words + panels::lane_index(n, k, problem.k, bits), static_cast<int>(k % panels::kGroup), bits));
  } else if (element.bits == 32) {
    return {load_value(w.codes + static_cast<std::size_t>(n) * w.row_bytes, DType::kF32, k), 1.0};
  } else {
    code = read_code(w.codes + static_cast<std::size_t>(n) * w.row_bytes, k, element.bits);
  }
  if (element.bits == 32) return {std::bit_cast<float>(code), 1.0};
  const std::int64_t cell = panels ? panels::scale_index(n, w.grid.grid_col(k), panels::k_blocks(w.grid, problem.k))
                                   : w.grid.grid_row(n) * w.grid.cols + w.grid.grid_col(k);
  const float scale =
      w.scheme.has_scales() ? effective_scale(w.scheme, load_scale_code(w.scales, w.scheme.scale, cell), w.outer_scale) : 1.0f;
  if (w.scheme.asymmetric) return {static_cast<double>(code) - w.zero_points[cell], scale};
  return {decode(element, code), scale};
}

struct Sum {
  std::int64_t integer = 0;  ///< of integer pairs without a scale along k
  float value = 0.0f;
};

Sum integer_sum(const MatmulProblem& problem, std::int64_t row, std::int64_t n) {
  const bool x_varies = varies_along_k(problem.x.scheme, problem.x.grid), w_varies = varies_along_k(problem.w.scheme, problem.w.grid);
  Sum sum;
  float total = 0.0f;
  float fixed = 1.0f;
  for (std::int64_t k = 0; k < problem.k;) {
    const Element x0 = activation_at(problem.x, row, k), w0 = weight_at(problem, n, k);
    std::int64_t end = k, run = 0;
    for (; end < problem.k; ++end) {
      if (x_varies && problem.x.grid.grid_col(end) != problem.x.grid.grid_col(k)) break;
      if (w_varies && problem.w.grid.grid_col(end) != problem.w.grid.grid_col(k)) break;
      run += static_cast<std::int64_t>(activation_at(problem.x, row, end).code_value * weight_at(problem, n, end).code_value);
    }
    const float x_scale = static_cast<float>(x0.scale), w_scale = static_cast<float>(w0.scale);
    const float varying = (x_varies ? x_scale : 1.0f) * (w_varies ? w_scale : 1.0f);
    fixed = (x_varies ? 1.0f : x_scale) * (w_varies ? 1.0f : w_scale);
    sum.integer += run;
    total = x_varies || w_varies ? std::fma(static_cast<float>(run), varying, total) : static_cast<float>(run);
    k = end;
  }
  sum.value = total * fixed;
  return sum;
}

Sum float_sum(const MatmulProblem& problem, std::int64_t row, std::int64_t n) {
  double total = 0.0;
  for (std::int64_t k = 0; k < problem.k; ++k) {
    const Element x = activation_at(problem.x, row, k), w = weight_at(problem, n, k);
    const double value = w.code_value * w.scale;
    total += (x.code_value * x.scale) * (problem.in_fp64 ? static_cast<double>(static_cast<float>(value)) : value);
  }
  return {0, static_cast<float>(total)};
}

void store(const MatmulEpilogue& epilogue, std::int64_t row, std::int64_t n, const Sum& sum) {
  const std::int64_t index = row * epilogue.y_stride + n;
  if (epilogue.out == DType::kI32) {
    static_cast<std::int32_t*>(epilogue.y)[index] = static_cast<std::int32_t>(sum.integer);
    return;
  }
  float value = sum.value;
  if (epilogue.bias != nullptr) value = value + epilogue.bias[n];
  value = activate(epilogue.activation, value);
  if (epilogue.residual != nullptr)
    value = value + load_value(epilogue.residual, epilogue.residual_dtype, row * epilogue.residual_stride + n);
  switch (epilogue.out) {
    case DType::kI8:
      static_cast<std::uint8_t*>(epilogue.y)[index] = static_cast<std::uint8_t>(encode(kInt8, value / epilogue.out_scale));
      break;
    case DType::kF8E4m3:
      static_cast<std::uint8_t*>(epilogue.y)[index] = static_cast<std::uint8_t>(encode(kFp8E4m3, value / epilogue.out_scale));
      break;
    case DType::kF8E5m2:
      static_cast<std::uint8_t*>(epilogue.y)[index] = static_cast<std::uint8_t>(encode(kFp8E5m2, value / epilogue.out_scale));
      break;
    default: store_value(epilogue.y, epilogue.out, index, value);
  }
}

void run(const MatmulProblem& problem, const MatmulTile& tile, const std::byte*, std::byte*) {
  const bool integers = problem.x.quantized && is_exact_integer(problem.x.scheme.element) && is_exact_integer(problem.w.scheme.element);
  for (std::int64_t row = tile.m_begin; row < tile.m_end; ++row)
    for (std::int64_t n = tile.n_begin; n < tile.n_end; ++n)
      store(problem.epilogue, row, n, integers ? integer_sum(problem, row, n) : float_sum(problem, row, n));
}

}  // namespace

const MatmulKernel kMatmul{
    "ref_matmul", Isa::kScalar, "every pair of schemes, layout and shape", accepts, 1, 64, no_bytes, no_begin, no_pack, no_bytes, run};

}  // namespace narrow::reference
