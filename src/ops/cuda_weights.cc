/// Products with weights in any scheme on a CUDA device: validate -> plan -> launch. Nothing here waits but prepare_weight outside of
/// captures, which alone allocates.

#include "ops/cuda_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/runtime.h"
#include "kernels/cuda/byte_product.h"
#include "narrow/error.h"
#include "ops/cuda_operands.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kPrefix = "sm90_matmul_weights_", kAnyName = "any_matmul_weights";

bool is_dense(const Scheme& scheme) { return (scheme.element == kFp16 || scheme.element == kBf16) && !scheme.has_scales(); }

/// Kind and stored bits of a format; 0 bits where there is no decoder.
void set_kind(const Format& element, WeightLayoutInfo& layout) {
  layout.kind = WeightKind::kInteger;
  if (element.is_integer() && (element.bits == 8 || (element.bits >= 2 && element.bits <= 4))) layout.bits = element.bits;
  if (element.kind == FormatKind::kCodebook && element.codebook == Codebook::kSign) layout.bits = 2;
  if (!element.is_float()) return;
  layout.kind = WeightKind::kFloat;
  // The top exponent of five bits is fp16's infinity.
  const bool fits = element.exponent_bits <= 4 || element == kFp8E5m2;
  if (!fits || element.bits > 8) return;
  constexpr Format kThree = kFp3E2m0;
  layout.bits = element.bits == 7 ? 8 : std::max<int>(element.bits, element == kThree ? 3 : 4);
  layout.mantissa = has_own_decoder(layout.bits, element.mantissa_bits) ? element.mantissa_bits : stored_mantissa(layout.bits);
}

Tensor checked(const Tensor& tensor, const Tensor& y, const char* what) {
  if (!is_floating(tensor.dtype()) || !tensor.is_contiguous() || tensor.shape() != y.shape() || tensor.device() != y.device())
    throw InvalidArgument(fmt::format("matmul: the {} must be contiguous fp32, fp16 or bf16 values of y's shape on its device", what));
  return tensor;
}

WeightEpilogue epilogue_of(const Tensor& y, std::int64_t n, const WeightMatmulOptions& options) {
  if (!is_floating(y.dtype())) throw Unsupported(fmt::format("matmul: y is {}; use F32, F16 or BF16", name_of(y.dtype())));
  WeightEpilogue e;
  e.activation = options.activation;
  e.out = y.dtype();
  if (options.bias) {
    const Tensor& bias = *options.bias;
    require(bias.dtype() == DType::kF32 && bias.is_contiguous() && bias.size() == n && bias.device() == y.device(),
            "bias must be n contiguous fp32 values on y's device");
    e.bias = bias.as<float>();
  }
  if (options.multiplier) {
    e.multiplier = checked(*options.multiplier, y, "multiplier").data();
    e.multiplier_type = options.multiplier->dtype();
  }
  if (options.residual) {
    e.residual = checked(*options.residual, y, "residual").data();
    e.residual_type = options.residual->dtype();
  }
  return e;
}

std::int64_t pitch_of(const Tensor& tensor, const char* what) {
  require(tensor.rank() == 2, fmt::format("{} must be a matrix", what));
  if (tensor.size() == 0 || tensor.is_contiguous()) return tensor.shape()[1];
  require(tensor.strides()[1] == 1 || tensor.shape()[1] == 1, fmt::format("{}'s columns must be contiguous", what));
  return tensor.strides()[0];
}

/// A copy of x whose rows start at multiples of 16 bytes, padded with zeros.
std::int64_t arranged_pitch(std::int64_t k) { return (k + 63) / 64 * 64; }
std::size_t arranged_bytes(std::int64_t m, std::int64_t k) { return static_cast<std::size_t>(m * arranged_pitch(k)) * 2; }

std::string row_name(int config) { return std::string(kPrefix).append(weight_configs()[static_cast<std::size_t>(config)].name); }

int config_of(std::string_view name) {
  for (int i = 0; i < static_cast<int>(weight_configs().size()); ++i)
    if (row_name(i) == name) return i;
  throw InvalidArgument(fmt::format("matmul: there is no CUDA kernel '{}'", name));
}

}  // namespace

std::optional<WeightLayoutInfo> weight_layout(const Scheme& scheme, std::int64_t n, std::int64_t k) {
  WeightLayoutInfo layout;
  if (n > kMost || k > kMost) return std::nullopt;
  layout.row_chunks = static_cast<int>((n + kChunkRows - 1) / kChunkRows);
  layout.depth_chunks = static_cast<int>((k + kChunkDepth - 1) / kChunkDepth);
  if (is_dense(scheme)) {
    layout.kind = WeightKind::kDense;
    layout.bits = 16;
    return layout;
  }
  set_kind(scheme.element, layout);
  if (layout.bits == 0) return std::nullopt;
  layout.has_zeros = scheme.asymmetric;
  if (!scheme.has_scales()) return layout;
  const ScaleGrid grid = scale_grid(scheme, {n, k});
  if (grid.cols <= 1) return layout;
  layout.step = kChunkDepth;
  while (layout.step >= 16 && grid.tile_cols % layout.step != 0) layout.step /= 2;
  if (layout.step < 16) return std::nullopt;
  const bool fits_bf16 = scheme.scale == kBf16 || scheme.scale == kE8m0 || scheme.scale == kFp8E4m3;
  if (!fits_bf16 && scheme.scale != kFp32 && scheme.scale != kFp16) return std::nullopt;
  layout.scale = fits_bf16 ? ChunkScale::kBf16 : ChunkScale::kFloat;
  return layout;
}

bool can_prepare_weight(const Scheme& scheme, std::int64_t n, std::int64_t k) { return weight_layout(scheme, n, k).has_value(); }

WeightView weight_view(const DeviceWeight& w) {
  WeightView view;
  view.n = static_cast<int>(w.n);
  view.k = static_cast<int>(w.k);
  view.is_prepared = w.is_prepared;
  if (w.is_prepared) view.layout = weight_layout(w.scheme, w.n, w.k).value();
  view.chunks = w.chunks.as<std::uint8_t>();
  view.factors = w.factors.as<float>();
  view.is_steady = w.is_steady;
  view.scheme = w.scheme;
  if (w.scheme.has_scales()) view.grid = scale_grid(w.scheme, {w.n, w.k});
  view.codes = w.codes.as<std::uint8_t>();
  view.row_bytes = static_cast<std::int64_t>(packed_row_bytes(w.scheme, w.k));
  view.scales = w.scales.data();
  view.zero_points = w.zero_points.as<std::uint8_t>();
  view.outer_scale = w.scheme.has_outer_scale ? w.outer_scale.as<float>() : nullptr;
  return view;
}

DeviceWeight prepare_weight(const DeviceQuantized& q, Stream stream) {
  if (q.device().is_cpu()) throw InvalidArgument("prepare_weight: the tensor is on the CPU; copy it with cuda::to_device");
  if (q.shape.size() != 2) throw InvalidArgument(fmt::format("prepare_weight: {} is not a matrix", to_string(q.shape)));
  if (std::max(q.shape[0], q.shape[1]) > kMost) throw InvalidArgument("prepare_weight: a dimension has more than 2^30 elements");
  DeviceWeight w{q.scheme, q.shape[0], q.shape[1], false, {}, {}, q.codes, q.scales, q.zero_points, q.outer_scale};
  const std::optional<WeightLayoutInfo> layout = weight_layout(q.scheme, w.n, w.k);
  if (!layout || w.n == 0 || w.k == 0) return w;
  const DeviceGuard guard(q.device().index);
  WeightView view = weight_view(w);
  view.layout = *layout;
  w.chunks = Buffer::allocate(static_cast<std::size_t>(layout->total_bytes()), q.device());
  const std::size_t rows = static_cast<std::size_t>(layout->row_chunks) * kChunkRows;
  w.factors = Buffer::allocate((2 * rows + 1) * sizeof(float), q.device());
  check(launch_prepare_weight(view, w.chunks.as<std::uint8_t>(), w.factors.as<float>(), stream), "prepare_weight");
  // Steadiness is known when the kernels have run, which those of a capture have not: its products take the rows that need none.
  if (layout->scale != ChunkScale::kNone && is_capturing(stream)) {
    w.is_steady = false;
  } else if (layout->scale != ChunkScale::kNone) {
    std::uint32_t unsteady = 0;
    copy_bytes(&unsteady, w.factors.as<float>() + 2 * rows, sizeof unsteady, stream);
    synchronize(stream);
    w.is_steady = unsteady == 0;
  }
  w.is_prepared = true;
  w.codes = {};
  w.zero_points = {};
  if (layout->scale != ChunkScale::kNone) w.scales = {};
  return w;
}

DeviceWeight prepare_weight(const Tensor& w, Stream stream) {
  if (w.dtype() != DType::kF16 && w.dtype() != DType::kBf16)
    throw Unsupported(fmt::format("prepare_weight: the weight is {}; use F16 or BF16, or quantize it", name_of(w.dtype())));
  if (!w.is_contiguous() || w.device().is_cpu())
    throw InvalidArgument("prepare_weight: a dense weight must be contiguous, on a CUDA device");
  Scheme scheme;
  scheme.element = w.dtype() == DType::kF16 ? kFp16 : kBf16;
  scheme.granularity = Granularity::none();
  DeviceQuantized q{scheme, w.shape(), Buffer::borrow(w.data(), w.byte_size(), w.device()), {}, {}, {}};
  return prepare_weight(q, stream);
}

DeviceQuantized unprepare_weight(const DeviceWeight& w, Stream stream) {
  if (!w.is_prepared) return {w.scheme, {w.n, w.k}, w.codes, w.scales, w.zero_points, w.outer_scale};
  DeviceQuantized q = allocate_quantized(w.scheme, {w.n, w.k}, w.device());
  const DeviceGuard guard(w.device().index);
  const WeightView view = weight_view(w);
  const bool scales_in_chunks = view.layout.scale != ChunkScale::kNone;
  if (!scales_in_chunks) q.scales = w.scales;
  q.outer_scale = w.outer_scale;
  check(launch_unprepare_weight(view, q.codes.as<std::uint8_t>(), scales_in_chunks ? q.scales.data() : nullptr,
                                view.layout.has_zeros ? q.zero_points.as<std::uint8_t>() : nullptr, stream),
        "unprepare_weight");
  return q;
}

WeightProblem weight_problem(const Tensor& x, const DeviceWeight& w, const Tensor& y, const WeightMatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  if (x.dtype() != DType::kF16 && x.dtype() != DType::kBf16)
    throw Unsupported(fmt::format("matmul: x is {}; use F16 or BF16 (cuda::convert)", name_of(x.dtype())));
  WeightProblem p;
  p.x_pitch = pitch_of(x, "x");
  p.y_pitch = pitch_of(y, "y");
  require(x.shape()[1] == w.k, fmt::format("x has {} columns and w has {}", x.shape()[1], w.k));
  require(x.shape()[0] <= kMost, "x has more than 2^30 rows");
  const Shape expected{x.shape()[0], w.n};
  if (y.shape() != expected)
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(expected)));
  p.m = static_cast<int>(x.shape()[0]);
  p.x_type = x.dtype();
  p.x = x.data();
  if (options.order) {
    const Tensor& order = *options.order;
    require(order.dtype() == DType::kI32 && order.is_contiguous() && order.size() == w.k && order.device() == x.device(),
            "the order must be k contiguous int32 values on x's device");
    p.order = order.as<std::int32_t>();
  }
  p.w = weight_view(w);
  p.epilogue = epilogue_of(y, w.n, options);
  p.y = y.data();
  return p;
}

void matmul(const Tensor& x, const DeviceWeight& w, const Tensor& y, Stream stream, const WeightMatmulOptions& options,
            Workspace workspace) {
  WeightProblem problem = weight_problem(x, w, y, options);
  const int config = options.kernel.empty() || options.kernel == kAnyName ? -1 : config_of(options.kernel);
  if (y.size() == 0) return;
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  if (config >= 0 && (!device.is_hopper || !has_weight_config(problem, config)))
    throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", options.kernel));
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.x) % 16 == 0 && problem.x_pitch % 8 == 0 && w.k % 64 == 0;
  const bool arranges = !aligned || problem.order != nullptr;
  const std::int64_t pitch = arranged_pitch(w.k);
  const std::size_t arranged = arranges ? arranged_bytes(problem.m, w.k) : 0;
  if (workspace.data != nullptr && workspace.size > arranged && reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0) {
    problem.workspace = static_cast<std::byte*>(workspace.data) + arranged;
    problem.workspace_size = workspace.size - arranged;
  }
  constexpr int kSomeParts = 3;  // where there is room, so that tests reach them
  WeightPlan plan{-1};
  if (config >= 0) {
    plan = make_even_plan(problem, config, device.multiprocessors);
    if (!plan.is_even) plan = make_weight_plan(problem, config, kSomeParts, device.multiprocessors);
  } else if (device.is_hopper && options.kernel.empty()) {
    plan = choose_weight_plan(problem, device.multiprocessors);
  }
  if (plan.config < 0) return check(launch_weight_product_any(problem, stream), kAnyName);
  if (!arranges) return check(launch_weight_product(problem, plan, stream), "matmul");
  const Scratch scratch(arranged, workspace, stream);
  check(launch_arrange_columns(problem, scratch.data(), pitch, stream), "matmul");
  problem.x = scratch.data();
  problem.x_pitch = pitch;
  problem.order = nullptr;
  check(launch_weight_product(problem, plan, stream), "matmul");
}

std::size_t weight_matmul_workspace(std::int64_t m, const DeviceWeight& w) {
  return arranged_bytes(m, w.k) + (w.is_prepared ? most_even_workspace(m, byte_device().multiprocessors) : 0);
}

std::vector<std::string> weight_matmul_kernel_names() {
  std::vector<std::string> names;
  for (int i = 0; i < static_cast<int>(weight_configs().size()); ++i) names.push_back(row_name(i));
  names.emplace_back(kAnyName);
  return names;
}

std::vector<MatmulChoice> explain_weight_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, DType x,
                                                int multiprocessors) {
  if (weight_configs().empty() || std::max({m, n, k}) > kMost || multiprocessors < 1) return {};
  WeightProblem problem;
  problem.m = static_cast<int>(m);
  problem.x_type = x;
  problem.w.n = static_cast<int>(n);
  problem.w.k = static_cast<int>(k);
  problem.w.scheme = weight;
  const std::optional<WeightLayoutInfo> layout = weight_layout(weight, n, k);
  problem.w.is_prepared = layout.has_value() && n > 0 && k > 0;
  if (layout) problem.w.layout = *layout;
  const WeightPlan best = problem.w.is_prepared && m > 0 ? choose_weight_plan(problem, multiprocessors) : WeightPlan{-1};
  std::vector<MatmulChoice> choices;
  for (int i = 0; i < static_cast<int>(weight_configs().size()); ++i) {
    MatmulChoice choice{row_name(i), "sm_90a", m > 0 && has_weight_config(problem, i), i == best.config, {}};
    if (!problem.w.is_prepared) {
      choice.reason = "no decoder for this format, or scales over columns that are no multiple of 16";
    } else if (!choice.accepted) {
      choice.reason = "not compiled for this format and these scales";
    } else {
      const WeightPlan plan = choice.chosen ? best : make_weight_plan(problem, i, 1, multiprocessors);
      choice.reason = fmt::format("{} tiles in {} parts, about {:.1f} us", plan.tiles, plan.parts, estimate_weight_plan(problem, plan));
    }
    choices.push_back(std::move(choice));
  }
  choices.push_back({std::string(kAnyName), "any", true, best.config < 0, "without tensor cores: about a hundred times slower"});
  return choices;
}

}  // namespace narrow::cuda
