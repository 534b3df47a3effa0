/// fp8 products on a CUDA device: validate -> plan -> launch. Nothing here waits; prepare_fp8 alone allocates.

#include "ops/cuda_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "device/cuda/runtime.h"
#include "kernels/cuda/byte_prepare.h"
#include "kernels/cuda/library_product.h"
#include "narrow/error.h"
#include "ops/cuda_operands.h"
#include "ops/tuned_kernels.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kPrefix = "sm90_matmul_fp8_fp8_", kLibraryName = "cublaslt_matmul_fp8_fp8", kMmaName = "mma_matmul_fp8_fp8",
                           kAnyName = "any_matmul_fp8_fp8";
constexpr std::int64_t kBlock = 128, kAlignment = 16, kMostGroups = 65536;

bool is_fp8(const Scheme& scheme) {
  const Granularity& g = scheme.granularity;
  const bool granularity = g.kind == Granularity::Kind::kTensor || g == Granularity::row() || g == Granularity::block(kBlock) ||
                           g == Granularity::block(kBlock, kBlock);
  return (scheme.element == kFp8E4m3 || scheme.element == kFp8E5m2) && granularity && scheme.scale == kFp32 && !scheme.asymmetric &&
         !scheme.has_outer_scale;
}

bool is_outer(const Scheme& scheme) {
  return scheme.granularity.kind == Granularity::Kind::kTensor || scheme.granularity == Granularity::row();
}
bool is_aligned(const Buffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment == 0; }
std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

Fp8Matrix prepare(const Scheme& scheme, const Shape& shape, const Buffer& codes, const Buffer& scales, bool transposed, Stream stream) {
  if (codes.device().is_cpu()) throw InvalidArgument("prepare_fp8: the tensor is on the CPU; copy it with cuda::to_device");
  if (!is_fp8(scheme))
    throw Unsupported(fmt::format("prepare_fp8: {}; products take fp8_e4m3 and fp8_e5m2 with fp32 scales: tensor, row, block128 or 128x128",
                                  scheme.to_string()));
  const MatrixShape matrix = as_matrices(shape);
  Fp8Matrix result{scheme, matrix.matrices, matrix.rows, matrix.cols, round_up(matrix.cols, kAlignment), 0, codes, scales};
  const DeviceGuard guard(codes.device().index);
  const std::int64_t rows = matrix.total_rows();
  if (result.pitch != matrix.cols || !is_aligned(codes)) {
    result.codes = Buffer::allocate(static_cast<std::size_t>(rows * result.pitch), codes.device());
    check(launch_pad_rows(codes.as<std::uint8_t>(), rows, matrix.cols, result.codes.as<std::uint8_t>(), result.pitch, 0, stream),
          "prepare_fp8");
  }
  if (scheme.granularity == Granularity::block(kBlock)) {
    const std::int64_t padded = round_up(matrix.rows, 4), blocks = (matrix.cols + kBlock - 1) / kBlock;
    result.scale_rows = matrix.matrices * padded;
    if (transposed) {
      if (!is_aligned(scales) || (matrix.matrices > 1 && padded != matrix.rows))
        throw InvalidArgument(
            fmt::format("prepare_fp8: transposed scales of {} must start at a multiple of 16 bytes and have a multiple of 4 rows in each "
                        "matrix; use allocate_fused, or leave transposed_scales out",
                        to_string(shape)));
    } else {
      result.scales = Buffer::allocate(static_cast<std::size_t>(blocks * result.scale_rows) * sizeof(float), codes.device());
      check(launch_transpose_scales(scales.as<float>(), matrix.matrices, matrix.rows, blocks, result.scales.as<float>(), padded, stream),
            "prepare_fp8");
    }
  }
  return result;
}

const std::int32_t* group_pointer(const Tensor& tensor, std::int64_t count, Device device, const char* what) {
  if (tensor.dtype() != DType::kI32 || !tensor.is_contiguous() || tensor.size() != count || tensor.device() != device)
    throw InvalidArgument(fmt::format("matmul: {} must be {} contiguous int32 values on x's device", what, count));
  return tensor.as<std::int32_t>();
}

ByteScaling scaling_of(const Fp8Matrix& x, const Fp8Matrix& w) {
  const Granularity block = Granularity::block(kBlock), tile = Granularity::block(kBlock, kBlock);
  if (is_outer(x.scheme) && is_outer(w.scheme)) return ByteScaling::kOuter;
  if (x.scheme.granularity == block && w.scheme.granularity == tile) return ByteScaling::kBlockTile;
  if (x.scheme.granularity == block && w.scheme.granularity == block) return ByteScaling::kBlockBlock;
  throw Unsupported(
      fmt::format("matmul: {} times {}; scales go together as tensor or row x tensor or row, block128 x 128x128, block128 x block128",
                  x.scheme.to_string(), w.scheme.to_string()));
}

ByteEpilogue epilogue_of(const Tensor& y, std::int64_t n, const Fp8MatmulOptions& options) {
  const DType out = y.dtype();
  const bool is_fp8_out = out == DType::kF8E4m3 || out == DType::kF8E5m2;
  if (!is_floating(out) && !is_fp8_out)
    throw Unsupported(fmt::format("matmul: y is {}; use F32, F16, BF16, F8_E4M3 or F8_E5M2", name_of(out)));
  require(!options.accumulate || out == DType::kF32, "accumulate needs an fp32 y");
  require(options.out_scale > 0.0f && options.out_scale <= std::numeric_limits<float>::max(), "out_scale must be positive and finite");
  ByteEpilogue e;
  e.activation = options.activation;
  e.accumulate = options.accumulate;
  e.out = out;
  e.out_scale = options.out_scale;
  if (options.residual) require(options.residual->shape() == y.shape(), "the residual must have y's shape");
  attach_tensors(e, y, n, options.bias, options.residual);
  return e;
}

/// Sets the grouping and checks the three shapes against it.
void set_groups(ByteProblem& p, const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options) {
  require(static_cast<int>(options.row_offsets.has_value()) + static_cast<int>(options.row_counts.has_value()) +
                  static_cast<int>(options.depth_offsets.has_value()) <=
              1,
          "groups are given by one of row_offsets, row_counts, depth_offsets");
  std::int64_t groups = 1, batches = 1;
  if (options.row_offsets) {
    p.grouping = ByteGrouping::kRowOffsets;
    groups = w.groups;
    require(x.groups == 1, "with row_offsets x is one matrix of all groups' rows");
    p.offsets = group_pointer(*options.row_offsets, groups + 1, x.device(), "row_offsets");
  } else if (options.row_counts) {
    p.grouping = ByteGrouping::kRowCounts;
    groups = batches = w.groups;
    require(x.groups == groups, "with row_counts x and w have one matrix per group");
    p.offsets = group_pointer(*options.row_counts, groups, x.device(), "row_counts");
  } else if (options.depth_offsets) {
    p.grouping = ByteGrouping::kDepth;
    groups = batches = options.depth_offsets->size() - 1;
    require(x.groups == 1 && w.groups == 1 && groups >= 0, "with depth_offsets x and w are one matrix each");
    require(p.scaling != ByteScaling::kBlockTile, "with depth_offsets both matrices have block128, row or tensor scales");
    p.offsets = group_pointer(*options.depth_offsets, groups + 1, x.device(), "depth_offsets");
  } else {
    require(x.groups == 1 && w.groups == 1, "batches need row_offsets, row_counts or depth_offsets");
  }
  require(groups <= kMostGroups, "there can be 65536 groups");
  require(batches * x.rows <= std::numeric_limits<std::int32_t>::max() / 2, "y has more than 2^30 rows");
  p.groups = static_cast<int>(groups);
  const bool batched = p.grouping == ByteGrouping::kRowCounts || p.grouping == ByteGrouping::kDepth;
  const Shape expected = batched ? Shape{batches, x.rows, w.rows} : Shape{x.rows, w.rows};
  if (y.shape() != expected)
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(expected)));
}

std::string row_name(int config) { return std::string(kPrefix).append(byte_configs()[static_cast<std::size_t>(config)].name); }

std::vector<MatmulChoice> choices_for(const ByteProblem& problem, const ByteDevice& device, bool here) {
  std::vector<MatmulChoice> choices = hopper_choices(problem, device, kPrefix);
  add_library_choice(choices, problem, device, kLibraryName, here);
  const bool chosen = std::none_of(choices.begin(), choices.end(), [](const MatmulChoice& c) { return c.chosen; });
  choices.push_back({std::string(kMmaName), "sm_80", device.has_mma, chosen && device.has_mma,
                     device.has_mma ? "decoded to fp16: for devices without wgmma, at most the rate of an fp16 product"
                                    : "the device is older than Ampere"});
  choices.push_back({std::string(kAnyName), "any", true, chosen && !device.has_mma, "without tensor cores: about a hundred times slower"});
  return choices;
}

/// The measured plan among Hopper's configurations; nothing where none was measured, or it does not take the product.
std::optional<BytePlan> tuned_plan(const ByteProblem& problem, const std::optional<TunedKernel>& tuned, std::string_view prefix,
                                   int multiprocessors) {
  if (!tuned) return std::nullopt;
  for (int i = 0; i < static_cast<int>(byte_configs().size()); ++i)
    if (tuned->kernel == std::string(prefix).append(byte_configs()[static_cast<std::size_t>(i)].name) && has_byte_config(problem, i))
      return make_byte_plan(problem, i, tuned->parts, multiprocessors);
  return std::nullopt;
}

/// Whether the measured choice, else the estimates, is cuBLASLt's row, cublaslt_OP; the caller knows that it takes the product.
bool is_best_in_library(const ByteProblem& problem, const std::optional<TunedKernel>& tuned, std::string_view name, int multiprocessors) {
  if (tuned && tuned->kernel == name) return true;
  if (tuned_plan(problem, tuned, fmt::format("sm90{}_", name.substr(name.find('_'))), multiprocessors)) return false;
  return estimate_library_product(problem) < estimate_byte_plan(problem, choose_byte_plan(problem, multiprocessors));
}

}  // namespace

std::vector<MatmulChoice> hopper_choices(const ByteProblem& problem, const ByteDevice& device, std::string_view prefix) {
  const std::optional<TunedKernel> tuned = device.is_hopper ? tuned_kernel(problem) : std::nullopt;
  const std::optional<BytePlan> measured = tuned_plan(problem, tuned, prefix, device.multiprocessors);
  const BytePlan best = measured ? *measured : (device.is_hopper ? choose_byte_plan(problem, device.multiprocessors) : BytePlan{-1});
  std::vector<MatmulChoice> choices;
  for (int i = 0; i < static_cast<int>(byte_configs().size()); ++i) {
    const std::string name = std::string(prefix).append(byte_configs()[static_cast<std::size_t>(i)].name);
    MatmulChoice choice{name, "sm_90a", device.is_hopper && has_byte_config(problem, i), i == best.config, {}};
    if (!device.is_hopper) {
      choice.reason = "the device is not a Hopper";
    } else if (!choice.accepted) {
      choice.reason = "not compiled for these formats, scales, layouts and groups";
    } else {
      const BytePlan plan = choice.chosen ? best : make_byte_plan(problem, i, 1, device.multiprocessors);
      choice.reason = fmt::format("{} tiles in {} parts, about {:.1f} us", plan.tiles, plan.parts, estimate_byte_plan(problem, plan));
      if (choice.chosen && measured) choice.reason += fmt::format("; tuned: {:.1f} us measured", tuned->microseconds);
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

BytePlan hopper_plan(const ByteProblem& problem, const ByteDevice& device, std::string_view prefix, std::string_view kernel) {
  if (kernel.empty())
    return tuned_plan(problem, tuned_kernel(problem), prefix, device.multiprocessors)
        .value_or(choose_byte_plan(problem, device.multiprocessors));
  constexpr int kSomeParts = 3;  // where there is room, so that tests reach them
  for (int i = 0; i < static_cast<int>(byte_configs().size()); ++i) {
    if (kernel != std::string(prefix).append(byte_configs()[static_cast<std::size_t>(i)].name)) continue;
    if (!has_byte_config(problem, i)) throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", kernel));
    return make_byte_plan(problem, i, kSomeParts, device.multiprocessors);
  }
  throw InvalidArgument(fmt::format("matmul: there is no CUDA kernel '{}'", kernel));
}

void add_library_choice(std::vector<MatmulChoice>& choices, const ByteProblem& problem, const ByteDevice& device, std::string_view name,
                        bool here) {
  std::string_view refusal = device.is_hopper ? library_refuses(problem) : "the device is not a Hopper";
  if (refusal.empty() && here && !library_takes(problem)) refusal = "the library refuses it";
  MatmulChoice row{std::string(name), "cuBLASLt", refusal.empty(), false, std::string(refusal)};
  if (row.accepted) {
    const std::optional<TunedKernel> tuned = tuned_kernel(problem);
    row.chosen = is_best_in_library(problem, tuned, name, device.multiprocessors);
    row.reason = fmt::format("about {:.1f} us", estimate_library_product(problem));
    if (tuned && tuned->kernel == name) row.reason += fmt::format("; tuned: {:.1f} us measured", tuned->microseconds);
    if (row.chosen)
      for (MatmulChoice& other : choices) other.chosen = false;
  }
  choices.push_back(std::move(row));
}

bool is_for_library(const ByteProblem& problem, const ByteDevice& device, std::string_view name, std::string_view kernel) {
  if (kernel == name) {
    if (!device.is_hopper || !library_takes(problem))
      throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", kernel));
    return true;
  }
  return kernel.empty() && library_refuses(problem).empty() &&
         is_best_in_library(problem, tuned_kernel(problem), name, device.multiprocessors) && library_takes(problem);
}

/// Bias and residual of a product into y [.., n].
void attach_tensors(ByteEpilogue& e, const Tensor& y, std::int64_t n, const std::optional<Tensor>& bias,
                    const std::optional<Tensor>& residual) {
  if (bias) {
    require(bias->dtype() == DType::kF32 && bias->is_contiguous() && bias->size() == n && bias->device() == y.device(),
            "bias must be n contiguous fp32 values on y's device");
    e.bias = bias->as<float>();
  }
  if (residual) {
    require(is_floating(residual->dtype()) && residual->is_contiguous() && residual->device() == y.device(),
            "the residual must be contiguous fp32, fp16 or bf16 values on y's device");
    e.residual = residual->data();
    e.residual_type = residual->dtype();
  }
}

ByteProblem fp8_problem(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  require(x.k == w.k, fmt::format("x has {} columns and w has {}", x.k, w.k));
  if (x.scheme.element == kFp8E5m2 && w.scheme.element == kFp8E5m2)
    throw Unsupported("matmul: e5m2 times e5m2; one of the two must be e4m3");
  require(x.rows * x.groups <= kMost && w.rows * w.groups <= kMost && x.k <= kMost, "a dimension has more than 2^30 elements");
  ByteProblem p;
  p.m = static_cast<int>(x.rows);
  p.n = static_cast<int>(w.rows);
  p.k = static_cast<int>(x.k);
  p.a = x.codes.as<std::uint8_t>();
  p.b = w.codes.as<std::uint8_t>();
  p.a_pitch = x.pitch;
  p.b_pitch = w.pitch;
  p.a_is_e5m2 = x.scheme.element == kFp8E5m2;
  p.b_is_e5m2 = w.scheme.element == kFp8E5m2;
  p.scaling = scaling_of(x, w);
  if (p.scaling == ByteScaling::kOuter && options.fast_accumulation) p.scaling = ByteScaling::kOuterFast;
  p.a_scales = x.scales.as<float>();
  p.b_scales = w.scales.as<float>();
  p.a_scale_step = x.scheme.granularity == Granularity::row() ? 1 : 0;
  p.b_scale_step = w.scheme.granularity == Granularity::row() ? 1 : 0;
  p.a_scale_rows = x.scale_rows;
  p.b_scale_rows = w.scale_rows;
  set_groups(p, x, w, y, options);
  const Shape& strides = y.strides();
  require(y.size() == 0 || y.is_contiguous() || (y.rank() == 2 && strides[1] == 1), "y's columns must be contiguous");
  p.epilogue = epilogue_of(y, w.rows, options);
  p.d = y.data();
  p.d_pitch = y.rank() == 2 && !y.is_contiguous() ? strides[0] : w.rows;
  return p;
}

Fp8Matrix prepare_fp8(const DeviceQuantized& q, Stream stream) { return prepare(q.scheme, q.shape, q.codes, q.scales, false, stream); }

Fp8Matrix prepare_fp8(const FusedOutput& q, Stream stream) {
  if (q.layout != Layout::kRow) throw Unsupported(fmt::format("prepare_fp8: layout {}; products read rows", name_of(q.layout)));
  return prepare(q.scheme, q.shape, q.codes, q.scales, q.transposed_scales, stream);
}

void matmul(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, Stream stream, const Fp8MatmulOptions& options) {
  const ByteProblem problem = fp8_problem(x, w, y, options);
  if (y.size() == 0) return;
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  // A product over no columns is an empty sum: the simple kernel writes the epilogue of zero.
  if (options.kernel == kAnyName || problem.k == 0 || !device.has_mma) return check(launch_fp8_product_any(problem, stream), kAnyName);
  if (options.kernel == kMmaName || !device.is_hopper) return check(launch_fp8_product_mma(problem, stream), kMmaName);
  if (is_for_library(problem, device, kLibraryName, options.kernel)) return check(launch_library_product(problem, stream), kLibraryName);
  const BytePlan plan = hopper_plan(problem, device, kPrefix, options.kernel);
  check(launch_byte_product(problem, plan, stream), "matmul");
}

std::vector<std::string> fp8_matmul_kernel_names() {
  std::vector<std::string> names;
  for (int i = 0; i < static_cast<int>(byte_configs().size()); ++i) names.push_back(row_name(i));
  names.emplace_back(kLibraryName);
  names.emplace_back(kMmaName);
  names.emplace_back(kAnyName);
  return names;
}

std::vector<MatmulChoice> explain_matmul(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options) {
  const ByteProblem problem = fp8_problem(x, w, y, options);
  const DeviceGuard guard(x.device().index);
  return choices_for(problem, byte_device(), true);
}

std::vector<MatmulChoice> explain_fp8_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, int multiprocessors) {
  if (byte_configs().empty() || !is_fp8(weight) || weight.element == kFp8E5m2 || std::max({m, n, k}) > kMost || multiprocessors < 1)
    return {};
  ByteProblem problem;
  problem.m = static_cast<int>(m);
  problem.n = static_cast<int>(n);
  problem.k = static_cast<int>(k);
  const bool tile = weight.granularity == Granularity::block(kBlock, kBlock);
  problem.scaling = is_outer(weight) ? ByteScaling::kOuter : (tile ? ByteScaling::kBlockTile : ByteScaling::kBlockBlock);
  return choices_for(problem, {true, true, multiprocessors}, false);
}

}  // namespace narrow::cuda
