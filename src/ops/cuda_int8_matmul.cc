/// int8 products on a CUDA device: validate -> plan -> launch. Nothing here waits; prepare_int8 alone allocates.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "device/cuda/runtime.h"
#include "kernels/cuda/byte_prepare.h"
#include "kernels/cuda/library_product.h"
#include "narrow/error.h"
#include "ops/cuda_matmul.h"
#include "ops/cuda_operands.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kPrefix = "sm90_matmul_int8_int8_", kLibraryName = "cublaslt_matmul_int8_int8",
                           kMmaName = "mma_matmul_int8_int8", kAnyName = "any_matmul_int8_int8";
constexpr std::int64_t kAlignment = 16;
/// So long that no sum of products of signed codes, or of 8-bit differences from zero points, leaves 32 bits.
constexpr std::int64_t kMostSymmetricK = 131072, kMostAsymmetricK = 32768;

bool is_int8(const Scheme& scheme) {
  const bool granularity = scheme.granularity.kind == Granularity::Kind::kTensor || scheme.granularity == Granularity::row();
  const bool element = scheme.asymmetric ? scheme.element.is_integer() && scheme.element.bits == 8 : scheme.element == kInt8;
  return element && granularity && scheme.scale == kFp32 && !scheme.has_outer_scale;
}
int step_of(const Scheme& scheme) { return scheme.granularity == Granularity::row() ? 1 : 0; }
bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0; }

Int8Matrix prepare(const Scheme& scheme, const Shape& shape, Layout layout, const Buffer& codes, const Buffer& scales,
                   const Buffer& zero_points, Stream stream, bool sums) {
  if (codes.device().is_cpu()) throw InvalidArgument("prepare_int8: the tensor is on the CPU; copy it with cuda::to_device");
  if (!is_int8(scheme) || (layout == Layout::kCol32 && (scheme.asymmetric || sums)))
    throw Unsupported(
        fmt::format("prepare_int8: {} in layout {}; products take int8 with fp32 scales, tensor or row, in rows, and "
                    "symmetric ones without sums in col32",
                    scheme.to_string(), name_of(layout)));
  if (layout != Layout::kRow && layout != Layout::kCol32)
    throw Unsupported(fmt::format("prepare_int8: layout {}; products read row and col32", name_of(layout)));
  const MatrixShape matrix = as_matrices(shape);
  if (matrix.matrices != 1) throw Unsupported(fmt::format("prepare_int8: {} is a batch of matrices", to_string(shape)));
  Int8Matrix result{scheme, matrix.rows, matrix.cols, layout, (matrix.cols + kAlignment - 1) / kAlignment * kAlignment,
                    codes,  scales,      {},          {}};
  const DeviceGuard guard(codes.device().index);
  if (layout == Layout::kRow && (result.pitch != matrix.cols || !is_aligned(codes.data()) || scheme.asymmetric)) {
    result.codes = Buffer::allocate(static_cast<std::size_t>(matrix.rows * result.pitch), codes.device());
    const std::uint8_t flip = scheme.asymmetric ? 0x80 : 0;
    check(launch_pad_rows(codes.as<std::uint8_t>(), matrix.rows, matrix.cols, result.codes.as<std::uint8_t>(), result.pitch, flip, stream),
          "prepare_int8");
  }
  if (scheme.asymmetric) {
    const std::int64_t count = step_of(scheme) == 1 ? matrix.rows : 1;
    result.zero_points = Buffer::allocate(static_cast<std::size_t>(count) * sizeof(std::int32_t), codes.device());
    check(launch_signed_zero_points(zero_points.as<std::uint8_t>(), count, result.zero_points.as<std::int32_t>(), stream), "prepare_int8");
  }
  if (sums) {
    result.sums = Buffer::allocate(static_cast<std::size_t>(matrix.rows) * sizeof(std::int32_t), codes.device());
    check(launch_row_sums(result.codes.as<std::int8_t>(), matrix.rows, matrix.cols, result.pitch, result.sums.as<std::int32_t>(), stream),
          "prepare_int8");
  }
  return result;
}

std::vector<MatmulChoice> choices_for(const ByteProblem& problem, const ByteDevice& device, bool has_mma, bool here) {
  std::vector<MatmulChoice> choices = hopper_choices(problem, device, kPrefix);
  add_library_choice(choices, problem, device, kLibraryName, here);
  const bool chosen = std::any_of(choices.begin(), choices.end(), [](const MatmulChoice& c) { return c.chosen; });
  const bool takes = has_mma && !problem.a_is_col32;
  choices.push_back({std::string(kMmaName), "sm_80", takes, takes && !chosen,
                     has_mma ? (takes ? "for devices without wgmma" : "x lies in col32") : "the device is older than Ampere"});
  choices.push_back({std::string(kAnyName), "any", true, !takes && !chosen, "dp4a, without tensor cores"});
  return choices;
}

}  // namespace

ByteEpilogue integer_epilogue(const Tensor& y, std::int64_t n, const Int8MatmulOptions& options) {
  const DType out = y.dtype();
  if (!is_floating(out) && out != DType::kI8 && out != DType::kI32)
    throw Unsupported(fmt::format("matmul: y is {}; use I32, I8, F32, F16 or BF16", name_of(out)));
  require(options.out_scale > 0.0f && options.out_scale <= std::numeric_limits<float>::max(), "out_scale must be positive and finite");
  require(out != DType::kI32 || (!options.bias && !options.residual && options.activation == Activation::kNone),
          "I32 results are raw sums; bias, activation and residual need a float or requantized result");
  ByteEpilogue e;
  e.activation = options.activation;
  e.out = out;
  e.out_scale = options.out_scale;
  attach_tensors(e, y, n, options.bias, options.residual);
  return e;
}

ByteProblem int8_problem(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, const Int8MatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  require(x.k == w.k, fmt::format("x has {} columns and w has {}", x.k, w.k));
  if (w.layout != Layout::kRow) throw Unsupported("matmul: the weight lies in rows; transform it once with cuda::transform");
  require(x.rows <= kMost && w.rows <= kMost, "a dimension has more than 2^30 elements");
  const bool asymmetric = x.scheme.asymmetric || w.scheme.asymmetric;
  const std::int64_t most = asymmetric ? kMostAsymmetricK : kMostSymmetricK;
  if (x.k > most) throw Unsupported(fmt::format("matmul: k is {}; sums of more than {} products may not fit int32", x.k, most));
  require(!x.scheme.asymmetric || w.sums.size() > 0, "x is asymmetric, so w needs its row sums: prepare_int8(w, stream, true)");
  require(!w.scheme.asymmetric || x.sums.size() > 0, "w is asymmetric, so x needs its row sums: prepare_int8(x, stream, true)");
  ByteProblem p;
  p.is_int8 = true;
  p.m = static_cast<int>(x.rows);
  p.n = static_cast<int>(w.rows);
  p.k = static_cast<int>(x.k);
  p.a = x.codes.as<std::uint8_t>();
  p.b = w.codes.as<std::uint8_t>();
  p.a_pitch = x.pitch;
  p.b_pitch = w.pitch;
  p.a_is_col32 = x.layout == Layout::kCol32;
  p.d_is_col32 = options.y_layout == Layout::kCol32;
  p.a_scales = x.scales.as<float>();
  p.b_scales = w.scales.as<float>();
  p.a_scale_step = step_of(x.scheme);
  p.b_scale_step = step_of(w.scheme);
  if (x.scheme.asymmetric) p.a_zeros = x.zero_points.as<std::int32_t>(), p.b_sums = w.sums.as<std::int32_t>();
  if (w.scheme.asymmetric) p.b_zeros = w.zero_points.as<std::int32_t>(), p.a_sums = x.sums.as<std::int32_t>();
  if (options.y_layout != Layout::kRow && !p.d_is_col32)
    throw Unsupported(fmt::format("matmul: y in layout {}; products write row and col32", name_of(options.y_layout)));
  const Shape expected = p.d_is_col32 ? Shape{layout_size(Layout::kCol32, x.rows, w.rows)} : Shape{x.rows, w.rows};
  if (y.shape() != expected)
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(expected)));
  require(y.size() == 0 || y.is_contiguous() || (y.rank() == 2 && y.strides()[1] == 1), "y's columns must be contiguous");
  if (options.residual) require(options.residual->shape() == Shape{x.rows, w.rows}, "the residual must be [m, n]");
  p.epilogue = integer_epilogue(y, w.rows, options);
  p.d = y.data();
  p.d_pitch = y.rank() == 2 && !y.is_contiguous() ? y.strides()[0] : w.rows;
  return p;
}

Int8Matrix prepare_int8(const DeviceQuantized& q, Stream stream, bool sums) {
  return prepare(q.scheme, q.shape, Layout::kRow, q.codes, q.scales, q.zero_points, stream, sums);
}
Int8Matrix prepare_int8(const FusedOutput& q, Stream stream, bool sums) {
  return prepare(q.scheme, q.shape, q.layout, q.codes, q.scales, {}, stream, sums);
}

void matmul(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, Stream stream, const Int8MatmulOptions& options) {
  const ByteProblem problem = int8_problem(x, w, y, options);
  if (x.rows == 0 || w.rows == 0) return;
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  // A product over no columns is an empty sum: the simple kernel writes the epilogue of zero.
  const bool any = options.kernel == kAnyName || problem.k == 0, mma = options.kernel == kMmaName;
  if (options.kernel == kLibraryName || (!any && !mma && device.is_hopper))
    if (is_for_library(problem, device, kLibraryName, options.kernel)) return check(launch_library_product(problem, stream), kLibraryName);
  if (!any && !mma && device.is_hopper)
    return check(launch_byte_product(problem, hopper_plan(problem, device, kPrefix, options.kernel), stream), "matmul");
  if (mma && (problem.a_is_col32 || !device.has_mma))
    throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", options.kernel));
  if (!any && device.has_mma && !problem.a_is_col32) return check(launch_int8_product_mma(problem, stream), kMmaName);
  check(launch_int8_product_any(problem, stream), kAnyName);
}

void linear(const FusedInput& input, const FusedOutput& x, const Int8Matrix& w, const Tensor& y, Stream stream,
            const Int8MatmulOptions& options) {
  if (as_matrices(x.shape).cols % kAlignment != 0) throw Unsupported("linear: k must be a multiple of 16");
  fused_quantize(input, x, stream);
  matmul(prepare_int8(x, stream), w, y, stream, options);
}

std::vector<std::string> int8_matmul_kernel_names() {
  std::vector<std::string> names;
  for (const ByteConfig& config : byte_configs()) names.push_back(std::string(kPrefix).append(config.name));
  names.emplace_back(kLibraryName);
  names.emplace_back(kMmaName);
  names.emplace_back(kAnyName);
  return names;
}

std::vector<MatmulChoice> explain_matmul(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, const Int8MatmulOptions& options) {
  const ByteProblem problem = int8_problem(x, w, y, options);
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  return choices_for(problem, device, device.has_mma, true);
}

std::vector<MatmulChoice> explain_int8_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, int multiprocessors) {
  if (byte_configs().empty() || !is_int8(weight) || std::max({m, n, k}) > kMost || multiprocessors < 1) return {};
  ByteProblem problem;
  problem.is_int8 = true;
  problem.m = static_cast<int>(m);
  problem.n = static_cast<int>(n);
  problem.k = static_cast<int>(k);
  return choices_for(problem, {true, true, multiprocessors}, true, false);
}

}  // namespace narrow::cuda
