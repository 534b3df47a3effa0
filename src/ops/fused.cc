/// The fused neighbours: validate, find a producer and a quantizer, allocate, run groups of rows on threads.

#include "narrow/fused.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "dispatch/fused.h"
#include "dispatch/quantize.h"
#include "format/layout.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/cpu/quantize/plan.h"
#include "kernels/storage.h"
#include "narrow/error.h"

namespace narrow {
namespace {

// The fp32 rows between producer and quantizer stay in the first-level cache.
constexpr std::int64_t kScratchElements = 4096;
// Rows whose codes are gathered before they are written in another layout, so that stores are runs of 16 * 32 bytes.
constexpr std::int64_t kGatheredRows = 16;
// A load waits for earlier stores to the same place in another page, as if they met.
constexpr std::size_t kPage = 4096;

std::size_t scale_bytes(const Format& format) { return format.bits / 8u; }

bool has_plain_rows(const Tensor& x) { return x.is_contiguous() || (x.rank() == 2 && (x.shape()[1] == 1 || x.strides()[1] == 1)); }

std::int64_t row_stride(const Tensor& x, std::int64_t cols) { return x.is_contiguous() || x.rank() < 2 ? cols : x.strides()[0]; }

void require_values(const Tensor& x, const char* what) {
  if (!x.device().is_cpu()) throw Unsupported(fmt::format("fused_quantize: {} must be on the CPU; copy it there first", what));
  if (!is_floating(x.dtype()))
    throw InvalidArgument(fmt::format("fused_quantize: {} is {}; use F32, F16 or BF16", what, name_of(x.dtype())));
}

void check_input(const FusedInput& input, std::int64_t cols) {
  require_values(input.x, "x");
  const bool needs_other = input.op == FusedOp::kSiluMul || input.op == FusedOp::kAddRmsNorm;
  const bool norm = input.op == FusedOp::kLayerNorm || input.op == FusedOp::kRmsNorm || input.op == FusedOp::kAddRmsNorm;
  if (needs_other != input.other.has_value())
    throw InvalidArgument("fused_quantize: a second tensor belongs to kSiluMul (up) and kAddRmsNorm (residual), and those need it");
  if (input.other) {
    require_values(*input.other, "the second tensor");
    if (input.other->shape() != input.x.shape() || input.other->dtype() != input.x.dtype())
      throw InvalidArgument(fmt::format("fused_quantize: the second tensor is {} {}, x is {} {}; they must agree",
                                        name_of(input.other->dtype()), to_string(input.other->shape()), name_of(input.x.dtype()),
                                        to_string(input.x.shape())));
    if (input.op == FusedOp::kAddRmsNorm && !has_plain_rows(*input.other))
      throw InvalidArgument("fused_quantize: the residual is updated in place and must have contiguous rows");
  }
  if ((input.weight && !norm) || (input.bias && input.op != FusedOp::kLayerNorm))
    throw InvalidArgument("fused_quantize: a weight belongs to the norms and a bias to LayerNorm alone");
  for (const auto& vector : {input.weight, input.bias})
    if (vector) {
      require_values(*vector, "a norm's weight or bias");
      if (!vector->is_contiguous() || vector->size() != cols || (input.weight && vector->dtype() != input.weight->dtype()))
        throw InvalidArgument(fmt::format("fused_quantize: weight and bias must be {} contiguous values of one type", cols));
    }
  if (!(input.epsilon >= 0.0f)) throw InvalidArgument(fmt::format("fused_quantize: epsilon is {}; it must not be negative", input.epsilon));
}

void check_scheme(const FusedInput& input, const Scheme& scheme) {
  const bool by_row = scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows == 1;
  const bool whole = scheme.granularity.kind == Granularity::Kind::kTensor && input.scales;
  if ((!by_row && !whole) || scheme.has_outer_scale || scheme.element.bits > 16)
    throw Unsupported(fmt::format(
        "fused_quantize: {} needs more than a row to make its scales; use row or block granularity, or static scales", scheme.to_string()));
}

/// The caller's scales and zero points in the scheme's own storage.
void store_given_scales(const FusedInput& input, const Scheme& scheme, std::int64_t cells, void* scales, std::uint8_t* zero_points) {
  const Tensor& given = *input.scales;
  if (given.dtype() != DType::kF32 || !given.is_contiguous() || given.size() != cells)
    throw InvalidArgument(fmt::format("fused_quantize: static scales must be {} contiguous fp32 values for {}", cells, scheme.to_string()));
  if (scheme.asymmetric != input.zero_points.has_value())
    throw InvalidArgument("fused_quantize: static zero points belong to asymmetric schemes, and those need them");
  for (std::int64_t i = 0; i < cells; ++i) {
    const float scale = given.as<float>()[i];
    if (!(scale > 0.0f) || std::isinf(scale))
      throw InvalidArgument(fmt::format("fused_quantize: static scale {} is {}; scales are positive and finite", i, scale));
    store_scale_code(scales, scheme.scale, i, store_scale(scheme.scale, scale, 1.0f).code);
  }
  if (!input.zero_points) return;
  const Tensor& zeros = *input.zero_points;
  if (zeros.dtype() != DType::kU8 || !zeros.is_contiguous() || zeros.size() != cells)
    throw InvalidArgument(fmt::format("fused_quantize: static zero points must be {} contiguous bytes", cells));
  std::copy_n(zeros.as<std::uint8_t>(), cells, zero_points);
}

void reuse_or_allocate(Buffer& buffer, std::size_t size) {
  if (buffer.size() != size || buffer.data() == nullptr || !buffer.device().is_cpu()) buffer = Buffer::allocate(size);
}

/// Everything that the threads need; pointers into the caller's tensors and results.
struct Plan {
  FusedProblem fused;
  QuantizeProblem quantize;  ///< of all rows; x is set per group
  Layout layout = Layout::kRow;
  std::int64_t matrix_rows = 1;
  std::int64_t group = 1;  ///< rows produced at a time
  const FusedKernel* producer = nullptr;
  const QuantizeKernel* quantizer = nullptr;
  // The usual case, where the producer's row of the table also quantizes; element is null in all others.
  const cpu::ElementPlan* element = nullptr;
  bool around_caches = false;
};

/// The general quantizer on rows [begin, end) that stand in y.
void quantize_rows(const Plan& plan, std::int64_t begin, std::int64_t end, const float* y, std::uint8_t* codes) {
  QuantizeProblem problem = plan.quantize;
  problem.x = y;
  problem.rows = end - begin;
  problem.codes = codes;
  if (!problem.grid.whole_tensor) {
    problem.grid.rows = problem.grid.matrix_rows = problem.grid.tiles_per_matrix = problem.rows;
    const std::int64_t first = begin * problem.grid.cols;
    problem.scales = static_cast<std::byte*>(problem.scales) + static_cast<std::size_t>(first) * scale_bytes(problem.scheme.scale);
    if (problem.zero_points != nullptr) problem.zero_points += first;
  }
  plan.quantizer->run(problem, {0, problem.rows, 0, problem.cols});
}

/// What a thread keeps from row to row.
struct Worker {
  std::int64_t end;  ///< of its rows
  float* y;          ///< fp32 rows between producer and quantizer
  FirstPass first{};
};

/// Rows [begin, end): produced into y, quantized into codes (a row-major block of its own).
void run_group(const Plan& plan, Worker& worker, std::int64_t begin, std::int64_t end, std::uint8_t* codes) {
  float* y = worker.y;
  const FusedProblem& fused = plan.fused;
  if (plan.element == nullptr) {
    plan.producer->run(fused, begin, end, y);
    quantize_rows(plan, begin, end, y, codes);
    return;
  }
  FusedFinish finish{.cols = fused.cols,
                     .block = plan.quantize.grid.tile_cols,
                     .element = plan.element,
                     .largest = static_cast<float>(plan.quantize.scheme.element.largest()),
                     .around_caches = plan.around_caches,
                     .end = worker.end,
                     .first = &worker.first};
  for (std::int64_t row = begin; row < end;) {
    finish.scales = static_cast<float*>(plan.quantize.scales) + row * plan.quantize.grid.cols;
    finish.codes = codes + static_cast<std::size_t>(row - begin) * plan.quantize.row_bytes;
    row = plan.producer->quantize(fused, row, end, finish, y);
    if (row == end) break;
    quantize_rows(plan, row, row + 1, y, codes + static_cast<std::size_t>(row - begin) * plan.quantize.row_bytes);
    ++row;
  }
}

/// A block of row-major codes to their places: stripe by stripe, so that neighbouring rows are neighbours in memory.
void scatter(const Plan& plan, std::int64_t begin, std::int64_t end, const std::uint8_t* block) {
  const std::int64_t cols = plan.fused.cols, rows = plan.matrix_rows, run = std::max<std::int64_t>(1, map_run(plan.layout, cols));
  for (std::int64_t col = 0; col < cols; col += run)
    for (std::int64_t row = begin; row < end; ++row) {
      std::uint8_t* matrix = plan.quantize.codes + row / rows * map_size(plan.layout, rows, cols);
      std::memcpy(matrix + map_offset(plan.layout, row % rows, col, rows, cols), block + (row - begin) * cols + col,
                  static_cast<std::size_t>(std::min(run, cols - col)));
    }
}

void run_rows(const Plan& plan, std::int64_t begin, std::int64_t end, float* y, std::uint8_t* block) {
  Worker worker{.end = end, .y = y};
  const std::int64_t group = plan.element != nullptr ? kGatheredRows : plan.group;
  if (plan.layout == Layout::kRow) {
    for (std::int64_t row = begin; row < end; row += group)
      run_group(plan, worker, row, std::min(end, row + group),
                plan.quantize.codes + static_cast<std::size_t>(row) * plan.quantize.row_bytes);
    return;
  }
  for (std::int64_t first = begin; first < end; first += kGatheredRows) {
    const std::int64_t last = std::min(end, first + kGatheredRows);
    for (std::int64_t row = first; row < last; row += group)
      run_group(plan, worker, row, std::min(last, row + group), block + (row - first) * plan.fused.cols);
    scatter(plan, first, last, block);
  }
}

/// Where in `memory`, which has a page to spare, a row is best stored that is made of `read`: a quarter of a page behind it, so that loads
/// run ahead of stores to the same place in a page.
float* place_behind(const void* read, std::byte* memory) {
  const std::size_t wanted = reinterpret_cast<std::uintptr_t>(read) + kPage * 3 / 4, found = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<float*>(memory + (wanted - found) % kPage / 64 * 64);
}

void run_plan(const Plan& plan) {
  const std::int64_t rows = plan.fused.rows, cols = plan.fused.cols;
  if (rows == 0 || cols == 0) return;
  const std::int64_t units = (rows + kGatheredRows - 1) / kGatheredRows;
  const std::int64_t threads = std::min<std::int64_t>(omp_get_max_threads(), units);
  const std::size_t y_bytes = static_cast<std::size_t>((plan.group * cols + 15) / 16 * 16) * sizeof(float) + kPage;
  const std::size_t block_bytes = plan.layout == Layout::kRow ? 0 : static_cast<std::size_t>((kGatheredRows * cols + 63) / 64 * 64);
  const Buffer scratch = Buffer::allocate(static_cast<std::size_t>(threads) * (y_bytes + block_bytes));
#pragma omp parallel num_threads(static_cast <int>(threads)) if (threads > 1)
  {
    const FloatEnvironment environment;
    const std::int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    std::byte* mine = scratch.data() + static_cast<std::size_t>(thread) * (y_bytes + block_bytes);
    const std::int64_t begin = units * thread / count * kGatheredRows, end = std::min(rows, units * (thread + 1) / count * kGatheredRows);
    float* y = place_behind(plan.fused.weight != nullptr ? plan.fused.weight : plan.fused.x, mine);
    run_rows(plan, begin, end, y, reinterpret_cast<std::uint8_t*>(mine + y_bytes));
    if (plan.element != nullptr) plan.producer->fence();
  }
}

/// Symmetric int8 and fp8 with dynamic fp32 scales, per row or per block of a multiple of 64.
bool is_usual(const Plan& plan) {
  const Scheme& scheme = plan.quantize.scheme;
  const bool element = scheme.element == kInt8 || scheme.element == kFp8E4m3 || scheme.element == kFp8E5m2;
  const bool block = plan.quantize.grid.tile_cols % 64 == 0 || plan.quantize.grid.tile_cols >= plan.fused.cols;
  return plan.producer->quantize != nullptr && element && block && !scheme.asymmetric && scheme.rule == ScaleRule::kLargest &&
         scheme.scale == kFp32 && !plan.quantize.scales_given;
}

/// Output is QuantizedTensor or LaidOutTensor: the parts have the same names.
template <typename Output>
void run_fused(const FusedInput& input, const Scheme& scheme, Layout layout, Output& out) {
  const MatrixShape matrix = as_matrices(input.x.shape());
  check_input(input, matrix.cols);
  check_scheme(input, scheme);
  if (layout != Layout::kRow && scheme.element.bits != 8)
    throw Unsupported(
        fmt::format("fused_quantize: codes of {} bits do not go into layout {}; 8-bit formats do", scheme.element.bits, name_of(layout)));
  const Tensor x = has_plain_rows(input.x) ? input.x : input.x.contiguous();
  const Tensor other = input.other ? (has_plain_rows(*input.other) ? *input.other : input.other->contiguous()) : Tensor{};

  Plan plan;
  plan.layout = layout;
  plan.matrix_rows = std::max<std::int64_t>(1, matrix.rows);
  plan.group = std::clamp<std::int64_t>(kScratchElements / std::max<std::int64_t>(1, matrix.cols), 1, kGatheredRows);
  FusedProblem& fused = plan.fused;
  fused = {.op = input.op,
           .dtype = x.dtype(),
           .rows = matrix.total_rows(),
           .cols = matrix.cols,
           .x = x.data(),
           .x_stride = row_stride(x, matrix.cols),
           .other = other.data(),
           .other_stride = row_stride(other, matrix.cols),
           .residual = other.data(),
           .weight_dtype = input.weight ? input.weight->dtype() : (input.bias ? input.bias->dtype() : DType::kF32),
           .weight = input.weight ? input.weight->data() : nullptr,
           .bias = input.bias ? input.bias->data() : nullptr,
           .epsilon = input.epsilon};
  plan.producer = &find(fused);

  QuantizeProblem& problem = plan.quantize;
  problem.rows = fused.rows;
  problem.cols = problem.row_stride = matrix.cols;
  problem.scheme = out.scheme = scheme;
  problem.grid = scale_grid(scheme, input.x.shape());
  problem.row_bytes = packed_row_bytes(scheme, matrix.cols);
  out.shape = input.x.shape();
  const std::size_t cells = static_cast<std::size_t>(problem.grid.count());
  const bool rows_first = layout == Layout::kRow;
  const std::int64_t places = matrix.matrices * map_size(layout, matrix.rows, matrix.cols);
  reuse_or_allocate(out.codes, rows_first ? static_cast<std::size_t>(problem.rows) * problem.row_bytes : static_cast<std::size_t>(places));
  reuse_or_allocate(out.scales, cells * scale_bytes(scheme.scale));
  reuse_or_allocate(out.zero_points, scheme.asymmetric ? cells : 0);
  problem.codes = out.codes.template as<std::uint8_t>();
  problem.scales = out.scales.data();
  problem.zero_points = scheme.asymmetric ? out.zero_points.template as<std::uint8_t>() : nullptr;
  if (input.scales) {
    store_given_scales(input, scheme, problem.grid.count(), problem.scales, problem.zero_points);
    problem.scales_given = true;
  }
  if (!rows_first && places != fused.rows * fused.cols) std::memset(problem.codes, 0, static_cast<std::size_t>(places));
  plan.quantizer = &find(problem);
  const cpu::QuantizePlan quantize_plan = cpu::plan_of(problem);
  if (is_usual(plan)) {
    plan.element = &quantize_plan.element;
    plan.around_caches = rows_first && quantize_plan.stream;
  }
  run_plan(plan);
}

}  // namespace

void fused_quantize(const FusedInput& input, const Scheme& scheme, QuantizedTensor& out) {
  out.outer_scale = 1.0f;
  run_fused(input, scheme, Layout::kRow, out);
}

QuantizedTensor fused_quantize(const FusedInput& input, const Scheme& scheme) {
  QuantizedTensor out;
  fused_quantize(input, scheme, out);
  return out;
}

void fused_quantize(const FusedInput& input, const Scheme& scheme, Layout layout, LaidOutTensor& out) {
  out.layout = layout;
  run_fused(input, scheme, layout, out);
}

LaidOutTensor fused_quantize(const FusedInput& input, const Scheme& scheme, Layout layout) {
  LaidOutTensor out;
  fused_quantize(input, scheme, layout, out);
  return out;
}

QuantizedTensor to_rows(const LaidOutTensor& x) {
  const Tensor codes = Tensor::over(x.codes, DType::kU8, {static_cast<std::int64_t>(x.codes.size())});
  const Tensor rows = transform(codes, x.shape, x.layout, Layout::kRow);
  Buffer copy = Buffer::allocate(rows.byte_size());
  if (rows.byte_size() > 0) std::memcpy(copy.data(), rows.data(), rows.byte_size());
  return assemble(x.scheme, x.shape, std::move(copy), x.scales, x.zero_points, 1.0f);
}

}  // namespace narrow
