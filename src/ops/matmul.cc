/// matmul: validate, quantize activations where asked, find a kernel, allocate, pack, run tiles on threads.

#include "narrow/matmul.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <omp.h>

#include "device/float_environment.h"
#include "dispatch/matmul.h"
#include "narrow/error.h"
#include "ops/matmul.h"
#include "ops/prepare.h"

namespace narrow {
namespace {

/// x as rows of contiguous columns with one row stride, copied only where its strides do not allow it.
Tensor with_plain_rows(const Tensor& x) {
  if (x.rank() == 0 || x.size() == 0 || x.is_contiguous()) return x;
  const std::size_t last = x.shape().size() - 1;
  bool plain = x.shape()[last] == 1 || x.strides()[last] == 1;
  for (std::size_t i = 0; i + 2 < x.shape().size(); ++i)
    plain = plain && (x.shape()[i] == 1 || x.strides()[i] == x.strides()[i + 1] * x.shape()[i + 1]);
  return plain ? x : x.contiguous();
}

std::int64_t row_stride_of(const Tensor& plain, std::int64_t cols) {
  return plain.is_contiguous() ? cols : plain.strides()[static_cast<std::size_t>(plain.rank()) - 2];
}

bool is_requantized(DType out) { return out == DType::kI8 || out == DType::kF8E4m3 || out == DType::kF8E5m2; }

bool is_integer_product(const MatmulProblem& problem) {
  return problem.x.quantized && is_exact_integer(problem.x.scheme.element) && is_exact_integer(problem.w.scheme.element);
}

void check_output(const MatmulProblem& problem, const MatmulOptions& options) {
  const DType out = options.out;
  if (!is_floating(out) && !is_requantized(out) && out != DType::kI32)
    throw InvalidArgument(fmt::format("matmul: results are F32, F16, BF16, I8, F8_E4M3, F8_E5M2 or I32, not {}", name_of(out)));
  if (is_requantized(out) && !(options.out_scale > 0.0f && std::isfinite(options.out_scale)))
    throw InvalidArgument(fmt::format("matmul: out_scale {} is not a positive finite number", options.out_scale));
  if (out != DType::kI32) return;
  if (!is_integer_product(problem) || varies_along_k(problem.x.scheme, problem.x.grid) || varies_along_k(problem.w.scheme, problem.w.grid))
    throw InvalidArgument(
        "matmul: I32 results are the exact sums of integer activations and integer weights without scales along k; choose F32 otherwise");
  if (options.bias || options.residual || options.activation != Activation::kNone)
    throw InvalidArgument("matmul: I32 results are raw sums; bias, activation and residual need a float or requantized result");
}

/// Bias, activation, residual and result; holds the tensors that the problem points to.
struct Epilogue {
  Tensor bias, residual, y;
};

/// y: where the result goes; a new tensor where null.
Epilogue attach_epilogue(MatmulProblem& problem, const MatmulOptions& options, Shape shape, const Tensor* y) {
  check_output(problem, options);
  Epilogue tensors;
  MatmulEpilogue& epilogue = problem.epilogue;
  if (options.bias) {
    const Tensor& bias = *options.bias;
    if (bias.dtype() != DType::kF32 || bias.rank() != 1 || bias.size() != problem.n || !bias.device().is_cpu())
      throw InvalidArgument(fmt::format("matmul: the bias is {} of {}; it must be fp32 of [{}] on the CPU", name_of(bias.dtype()),
                                        to_string(bias.shape()), problem.n));
    tensors.bias = bias.contiguous();
    epilogue.bias = tensors.bias.as<float>();
  }
  if (options.residual) {
    if (options.residual->shape() != shape || !is_floating(options.residual->dtype()) || !options.residual->device().is_cpu())
      throw InvalidArgument(fmt::format("matmul: the residual is {} of {}; it must be F32, F16 or BF16 of {} on the CPU",
                                        name_of(options.residual->dtype()), to_string(options.residual->shape()), to_string(shape)));
    tensors.residual = with_plain_rows(*options.residual);
    epilogue.residual = tensors.residual.data();
    epilogue.residual_dtype = tensors.residual.dtype();
    epilogue.residual_stride = row_stride_of(tensors.residual, problem.n);
  }
  if (y != nullptr && (y->dtype() != options.out || y->shape() != shape || !y->is_contiguous() || !y->device().is_cpu()))
    throw InvalidArgument(fmt::format("matmul: y is {} of {}; it must be contiguous {} of {} on the CPU", name_of(y->dtype()),
                                      to_string(y->shape()), name_of(options.out), to_string(shape)));
  tensors.y = y != nullptr ? *y : Tensor::empty(options.out, std::move(shape));
  epilogue.activation = options.activation;
  epilogue.y = tensors.y.data();
  epilogue.out = options.out;
  epilogue.y_stride = problem.n;
  epilogue.out_scale = options.out_scale;
  return tensors;
}

/// The shape of y; throws where x and w do not meet.
Shape result_shape(const Shape& x, const PreparedWeight& w) {
  if (x.empty() || x.back() != w.k)
    throw InvalidArgument(
        fmt::format("matmul: x is {} and the weight [{}, {}]; the last dimension of x must be {}", to_string(x), w.n, w.k, w.k));
  Shape shape = x;
  shape.back() = w.n;
  return shape;
}

/// The widest tile that leaves every thread four: shares of a static split differ by one tile.
std::int64_t tile_width(const MatmulProblem& problem, const MatmulKernel& kernel) {
  const std::int64_t tall = (problem.m + kernel.m_step - 1) / kernel.m_step, wanted = 4 * std::int64_t{omp_get_max_threads()};
  std::int64_t width = std::max(kernel.n_step, kernel.n_most);
  while (width > kernel.n_step && (problem.n + width - 1) / width * tall < wanted) width -= kernel.n_step;
  return width;
}

std::vector<MatmulTile> split(const MatmulProblem& problem, const MatmulKernel& kernel) {
  const std::int64_t width = tile_width(problem, kernel);
  std::vector<MatmulTile> tiles;
  for (std::int64_t n = 0; n < problem.n; n += width)
    for (std::int64_t m = 0; m < problem.m; m += kernel.m_step)
      tiles.push_back({m, std::min(problem.m, m + kernel.m_step), n, std::min(problem.n, n + width)});
  return tiles;
}

}  // namespace

WeightView view_of(const PreparedWeight& w) {
  WeightView view;
  view.layout = w.layout;
  view.scheme = w.scheme;
  view.grid = scale_grid(w.scheme, {w.n, w.k});
  view.codes = w.codes.as<std::uint8_t>();
  view.row_bytes = packed_row_bytes(w.scheme, w.k);
  view.scales = w.scales.data();
  view.zero_points = w.zero_points.as<std::uint8_t>();
  view.sums = w.sums.as<std::int32_t>();
  view.outer_scale = w.outer_scale;
  return view;
}

ActivationView view_of(const QuantizedTensor& x) {
  ActivationView view;
  view.quantized = true;
  view.scheme = x.scheme;
  view.grid = x.grid();
  view.codes = x.codes.as<std::uint8_t>();
  view.row_bytes = x.row_bytes();
  view.scales = x.scales.data();
  view.zero_points = x.zero_points.as<std::uint8_t>();
  view.outer_scale = x.outer_scale;
  return view;
}

void run_matmul(const MatmulProblem& problem, const MatmulKernel& kernel) {
  if (problem.m == 0 || problem.n == 0) return;
  const std::vector<MatmulTile> tiles = split(problem, kernel);
  const std::int64_t count = static_cast<std::int64_t>(tiles.size());
  const Buffer packed = Buffer::allocate(kernel.packed_bytes(problem));
  const std::size_t scratch_bytes = (kernel.scratch_bytes(problem) + 63) / 64 * 64;
  const Buffer scratch = Buffer::allocate(scratch_bytes * static_cast<std::size_t>(omp_get_max_threads()));
  kernel.begin(problem, packed.data());
#pragma omp parallel
  {
    const FloatEnvironment environment;
    std::byte* mine = scratch.data() + scratch_bytes * static_cast<std::size_t>(omp_get_thread_num());
#pragma omp for schedule(static)
    for (std::int64_t m = 0; m < problem.m; ++m) kernel.pack(problem, m, m + 1, packed.data());
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) kernel.run(problem, tiles[static_cast<std::size_t>(i)], packed.data(), mine);
  }
}

namespace {

Tensor multiply(MatmulProblem& problem, const PreparedWeight& w, const MatmulOptions& options, const Shape& x_shape, const Tensor* y) {
  const MatrixShape rows = as_matrices(x_shape);
  problem.m = rows.total_rows();
  problem.n = w.n;
  problem.k = w.k;
  problem.w = view_of(w);
  const Epilogue tensors = attach_epilogue(problem, options, result_shape(x_shape, w), y);
  run_matmul(problem, find(problem));
  return tensors.y;
}

/// The activation scheme that the options ask for, if any.
std::optional<ActivationQuantization> wanted_quantization(const Scheme& weight, const MatmulOptions& options) {
  if (options.quantize) return options.quantize;
  if (options.allow_int8_activations && weight.element.is_integer() && weight.element.fraction_bits == 0) return ActivationQuantization{};
  return std::nullopt;
}

Tensor product(const QuantizedTensor& x, const PreparedWeight& w, const MatmulOptions& options, const Tensor* y) {
  if (!x.device().is_cpu() || !w.device().is_cpu())
    throw Unsupported("matmul: this build computes on the CPU; copy the operands there first");
  if (options.quantize) throw InvalidArgument("matmul: x is quantized already; leave options.quantize empty");
  result_shape(x.shape, w);
  MatmulProblem problem;
  problem.x = view_of(x);
  return multiply(problem, w, options, x.shape, y);
}

Tensor product(const Tensor& x, const PreparedWeight& w, const MatmulOptions& options, const Tensor* y) {
  if (!is_floating(x.dtype()))
    throw InvalidArgument(
        fmt::format("matmul: activations are F32, F16 or BF16, not {}; pass quantized ones as a QuantizedTensor", name_of(x.dtype())));
  if (!x.device().is_cpu() || !w.device().is_cpu())
    throw Unsupported("matmul: this build computes on the CPU; copy the operands there first");
  result_shape(x.shape(), w);
  if (const auto wanted = wanted_quantization(w.scheme, options)) {
    QuantizeOptions how;
    how.scales = wanted->scales;
    how.zero_points = wanted->zero_points;
    MatmulOptions rest = options;
    rest.quantize.reset();
    return product(quantize(x, wanted->scheme, how), w, rest, y);
  }
  const Tensor plain = with_plain_rows(x);
  MatmulProblem problem;
  problem.x.data = plain.data();
  problem.x.dtype = plain.dtype();
  problem.x.row_stride = row_stride_of(plain, w.k);
  return multiply(problem, w, options, x.shape(), y);
}

}  // namespace

Tensor matmul(const Tensor& x, const PreparedWeight& w, const MatmulOptions& options) { return product(x, w, options, nullptr); }
Tensor matmul(const QuantizedTensor& x, const PreparedWeight& w, const MatmulOptions& options) { return product(x, w, options, nullptr); }
void matmul_into(const Tensor& x, const PreparedWeight& w, Tensor& y, const MatmulOptions& options) { product(x, w, options, &y); }
void matmul_into(const QuantizedTensor& x, const PreparedWeight& w, Tensor& y, const MatmulOptions& options) { product(x, w, options, &y); }

Tensor matmul_in_fp64(const Tensor& x, const PreparedWeight& w, const MatmulOptions& options) {
  MatmulProblem problem;
  problem.x.data = x.data();
  problem.x.row_stride = w.k;
  problem.in_fp64 = true;
  return multiply(problem, w, options, x.shape(), nullptr);
}

std::vector<MatmulChoice> explain_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, const MatmulOptions& options,
                                         DType x) {
  MatmulProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.x.dtype = x;
  problem.x.row_stride = k;
  if (const auto wanted = wanted_quantization(weight, options)) {
    problem.x.quantized = true;
    problem.x.scheme = wanted->scheme;
    problem.x.grid = scale_grid(wanted->scheme, {m, k});
    problem.x.row_bytes = packed_row_bytes(wanted->scheme, k);
  }
  problem.w.scheme = weight;
  problem.w.grid = scale_grid(weight, {n, k});
  problem.w.layout = fits_panels(weight, n, k) ? WeightLayout::kPanels : WeightLayout::kCanonical;
  problem.epilogue.out = options.out;
  std::vector<MatmulChoice> choices;
  bool found = false;
  for (const MatmulKernel& kernel : matmul_kernels()) {
    MatmulChoice choice{kernel.name, std::string(name_of(kernel.isa)), false, false, {}};
    const bool runs = cpu_supports(kernel.isa);
    choice.accepted = runs && kernel.accepts(problem);
    choice.chosen = choice.accepted && !found;
    found = found || choice.accepted;
    choice.reason =
        !runs ? fmt::format("needs {}, which this CPU lacks or a limit forbids", name_of(kernel.isa))
              : (choice.chosen ? fmt::format("the first that takes the product: {}", kernel.takes)
                               : (choice.accepted ? "would take it, but a better row comes first" : fmt::format("takes {}", kernel.takes)));
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace narrow
