/// int1 products on a CUDA device: validate -> choose -> launch. Nothing here waits; allocate_int1, prepare_int1 and unprepare_int1 alone
/// allocate.

#include "ops/cuda_binary.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/runtime.h"
#include "narrow/error.h"
#include "ops/cuda_matmul.h"
#include "ops/cuda_operands.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kPrefix = "sm90_matmul_int1_int1_", kAnyName = "any_matmul_int1_int1";
constexpr std::int64_t kAlignment = 16;
/// Of so few rows or products the plain kernel is done before tensor cores have their operands.
constexpr std::int64_t kTinyRows = 2;
constexpr double kTinyProducts = 1 << 20;

bool is_int1(const Scheme& scheme) {
  const bool granularity = scheme.granularity.kind == Granularity::Kind::kTensor || scheme.granularity == Granularity::row();
  return scheme.element == kInt1 && granularity && scheme.scale == kFp32 && !scheme.has_outer_scale;
}
int step_of(const Scheme& scheme) { return scheme.granularity == Granularity::row() ? 1 : 0; }
bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0; }
std::int64_t bytes_of(std::int64_t k) { return (k + 7) / 8; }
std::int64_t pitch_of(std::int64_t k) { return (bytes_of(k) + kAlignment - 1) / kAlignment * kAlignment; }

Buffer allocate_terms(std::int64_t rows, Device device) {
  return Buffer::allocate(static_cast<std::size_t>(padded_bit_rows(rows)) * sizeof(BitTerm), device);
}

/// The number of the Hopper row with that name; -1 for others.
int config_named(std::string_view name) {
  const auto configs = bit_configs();
  for (int i = 0; i < static_cast<int>(configs.size()); ++i)
    if (name == std::string(kPrefix).append(configs[static_cast<std::size_t>(i)].name)) return i;
  return -1;
}

bool takes_tensor_cores(const BitProblem& p, const ByteDevice& device) { return device.is_hopper && p.k >= 1 && p.k <= kMostBitK; }
bool is_tiny(const BitProblem& p) { return p.m <= kTinyRows || static_cast<double>(p.m) * p.n * p.k <= kTinyProducts; }

}  // namespace

Int1Matrix allocate_int1(std::int64_t rows, std::int64_t k, Device device) {
  if (device.is_cpu()) throw InvalidArgument("allocate_int1: the device is the CPU; use quantize without cuda::");
  if (rows < 0 || k < 1) throw InvalidArgument(fmt::format("allocate_int1: {} rows of {} columns", rows, k));
  const DeviceGuard guard(device.index);
  const std::int64_t pitch = pitch_of(k);
  return {Scheme::parse("int1:row"),   rows, k, pitch, Buffer::allocate(static_cast<std::size_t>(rows * pitch), device),
          allocate_terms(rows, device)};
}

void quantize(const Tensor& x, const Int1Matrix& q, Stream stream) {
  if (x.device() != q.device()) throw InvalidArgument("quantize: x and the matrix must be on one device");
  if (!is_floating(x.dtype())) throw Unsupported(fmt::format("quantize: x is {}; use F32, F16 or BF16", name_of(x.dtype())));
  if (x.shape() != Shape{q.rows, q.k} || step_of(q.scheme) != 1)
    throw InvalidArgument(
        fmt::format("quantize: x is {}, the matrix {} with {}", to_string(x.shape()), to_string(Shape{q.rows, q.k}), q.scheme.to_string()));
  if (x.size() != 0 && x.strides()[1] != 1) throw InvalidArgument("quantize: x's columns must be contiguous");
  if (q.rows == 0) return;
  const DeviceGuard guard(q.device().index);
  check(launch_pack_bits({x.data(), x.dtype(), q.rows, q.k, x.strides()[0], q.codes.as<std::uint8_t>(), q.pitch, q.terms.as<BitTerm>()},
                         stream),
        "quantize");
}

Int1Matrix prepare_int1(const DeviceQuantized& q, Stream stream) {
  if (q.device().is_cpu()) throw InvalidArgument("prepare_int1: the tensor is on the CPU; copy it with cuda::to_device");
  if (!is_int1(q.scheme))
    throw Unsupported(fmt::format("prepare_int1: {}; products take int1:row and int1:tensor with fp32 scales", q.scheme.to_string()));
  const MatrixShape matrix = as_matrices(q.shape);
  if (matrix.matrices != 1) throw Unsupported(fmt::format("prepare_int1: {} is a batch of matrices", to_string(q.shape)));
  const DeviceGuard guard(q.device().index);
  Int1Matrix result{q.scheme, matrix.rows, matrix.cols, pitch_of(matrix.cols), q.codes, allocate_terms(matrix.rows, q.device())};
  const bool shares = matrix.cols % (kAlignment * 8) == 0 && is_aligned(q.codes.data());
  if (!shares) result.codes = Buffer::allocate(static_cast<std::size_t>(matrix.rows * result.pitch), q.device());
  check(launch_prepare_bits({q.codes.as<std::uint8_t>(), matrix.rows, matrix.cols, bytes_of(matrix.cols),
                             shares ? nullptr : result.codes.as<std::uint8_t>(), result.pitch, q.scales.as<float>(), step_of(q.scheme),
                             result.terms.as<BitTerm>()},
                            stream),
        "prepare_int1");
  return result;
}

DeviceQuantized unprepare_int1(const Int1Matrix& q, Stream stream) {
  DeviceQuantized result = allocate_quantized(q.scheme, {q.rows, q.k}, q.device());
  const DeviceGuard guard(q.device().index);
  const std::int64_t scales = step_of(q.scheme) == 1 ? q.rows : std::min<std::int64_t>(1, q.rows);
  check(launch_unprepare_bits({q.codes.as<std::uint8_t>(), q.rows, bytes_of(q.k), q.pitch, result.codes.as<std::uint8_t>(),
                               q.terms.as<BitTerm>(), scales, result.scales.as<float>()},
                              stream),
        "unprepare_int1");
  return result;
}

BitProblem int1_problem(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, const Int1MatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  require(x.k == w.k, fmt::format("x has {} columns and w has {}", x.k, w.k));
  require(std::max({x.rows, w.rows, x.k}) <= kMost, "a dimension has more than 2^30 elements");
  const DType out = y.dtype();
  if (!is_floating(out) && out != DType::kI32) throw Unsupported(fmt::format("matmul: y is {}; use I32, F32, F16 or BF16", name_of(out)));
  require(out != DType::kI32 || (!options.bias && !options.residual && options.activation == Activation::kNone),
          "I32 results are raw sums; bias, activation and residual need a float result");
  if (y.shape() != Shape{x.rows, w.rows})
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(Shape{x.rows, w.rows})));
  require(y.size() == 0 || y.strides()[1] == 1, "y's columns must be contiguous");
  BitProblem p;
  p.m = static_cast<int>(x.rows);
  p.n = static_cast<int>(w.rows);
  p.k = static_cast<int>(x.k);
  p.a = x.codes.as<std::uint8_t>();
  p.b = w.codes.as<std::uint8_t>();
  p.a_pitch = x.pitch;
  p.b_pitch = w.pitch;
  p.a_terms = x.terms.as<BitTerm>();
  p.b_terms = w.terms.as<BitTerm>();
  p.epilogue.activation = options.activation;
  p.epilogue.out = out;
  attach_tensors(p.epilogue, y, w.rows, options.bias, options.residual);
  p.d = y.data();
  p.d_pitch = y.is_contiguous() ? w.rows : y.strides()[0];
  return p;
}

void matmul(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, Stream stream, const Int1MatmulOptions& options) {
  const BitProblem problem = int1_problem(x, w, y, options);
  const int named = config_named(options.kernel);
  require(options.kernel.empty() || named >= 0 || options.kernel == kAnyName, fmt::format("there is no kernel {}", options.kernel));
  if (y.size() == 0) return;
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  const bool tensor_cores = takes_tensor_cores(problem, device);
  if (named >= 0 && !tensor_cores) throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", options.kernel));
  if (named < 0 && (!tensor_cores || options.kernel == kAnyName || is_tiny(problem)))
    return check(launch_bit_product_any(problem, stream), kAnyName);
  check(launch_bit_product(problem, named >= 0 ? named : choose_bit_config(problem, device.multiprocessors), stream), "matmul");
}

std::vector<std::string> int1_matmul_kernel_names() {
  std::vector<std::string> names;
  for (const BitConfig& config : bit_configs()) names.push_back(std::string(kPrefix).append(config.name));
  names.emplace_back(kAnyName);
  return names;
}

std::vector<MatmulChoice> explain_matmul(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, const Int1MatmulOptions& options) {
  const BitProblem problem = int1_problem(x, w, y, options);
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  const bool takes = takes_tensor_cores(problem, device), tiny = is_tiny(problem);
  const int best = takes && !tiny ? choose_bit_config(problem, device.multiprocessors) : -1;
  std::vector<MatmulChoice> choices;
  for (int i = 0; i < static_cast<int>(bit_configs().size()); ++i)
    choices.push_back({std::string(kPrefix).append(bit_configs()[static_cast<std::size_t>(i)].name), "sm_90a", takes, i == best,
                       takes ? fmt::format("estimated {:.1f} us", estimate_bit_config(problem, i, device.multiprocessors))
                             : (device.is_hopper ? "k is beyond 2^21" : "the device is no Hopper")});
  choices.push_back({std::string(kAnyName), "any", true, best < 0, takes && tiny ? "few rows or products" : "exclusive or and popcount"});
  return choices;
}

}  // namespace narrow::cuda
