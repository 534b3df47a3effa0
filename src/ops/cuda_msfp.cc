/// MSFP products on a CUDA device: validate -> choose -> launch. Nothing here waits; prepare_msfp and unprepare_msfp allocate, and a
/// product its scratch memory, unless the caller gives it.

#include "narrow/cuda_msfp.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/runtime.h"
#include "kernels/cuda/msfp_product.h"
#include "narrow/error.h"
#include "ops/cuda_matmul.h"
#include "ops/cuda_operands.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kHopperName = "sm90_matmul_msfp_msfp_128x256_cluster_2x1", kAnyName = "any_matmul_msfp_msfp";
constexpr std::int64_t kAlignment = 16;

MsfpView view_of(const MsfpMatrix& q) { return {q.rows, q.depth, q.bits, q.codes.as<std::uint8_t>(), q.exponents.as<std::uint32_t>()}; }

MsfpProblem problem_of(const MsfpMatrix& x, const MsfpMatrix& w, const Tensor& y, const MsfpMatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  require(x.k == w.k, fmt::format("x has {} columns and w has {}", x.k, w.k));
  require(std::max({x.rows, w.rows, x.k}) <= kMost, "a dimension has more than 2^30 elements");
  if (!is_floating(y.dtype())) throw Unsupported(fmt::format("matmul: y is {}; use F32, F16 or BF16", name_of(y.dtype())));
  if (y.shape() != Shape{x.rows, w.rows})
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(Shape{x.rows, w.rows})));
  require(y.size() == 0 || y.strides()[1] == 1, "y's columns must be contiguous");
  MsfpProblem p;
  p.m = static_cast<int>(x.rows);
  p.n = static_cast<int>(w.rows);
  p.a = view_of(x);
  p.b = view_of(w);
  p.epilogue.activation = options.activation;
  p.epilogue.out = y.dtype();
  attach_tensors(p.epilogue, y, w.rows, options.bias, options.residual);
  p.d = y.data();
  p.d_pitch = y.is_contiguous() ? w.rows : y.strides()[0];
  return p;
}

}  // namespace

MsfpMatrix prepare_msfp(const DeviceQuantized& q, Stream stream) {
  if (q.device().is_cpu()) throw InvalidArgument("prepare_msfp: the tensor is on the CPU; copy it with cuda::to_device");
  if (!q.scheme.is_msfp) throw Unsupported(fmt::format("prepare_msfp: {} is no MSFP scheme; use msfp11 to msfp16", q.scheme.to_string()));
  const MatrixShape matrix = as_matrices(q.shape);
  if (matrix.matrices != 1) throw Unsupported(fmt::format("prepare_msfp: {} is a batch of matrices", to_string(q.shape)));
  if (matrix.cols == 0) throw InvalidArgument("prepare_msfp: the matrix has no columns");
  const int bits = q.scheme.element.bits;
  MsfpMatrix result{q.scheme, matrix.rows, matrix.cols, padded_msfp_depth(matrix.cols), bits <= 4 ? 4 : 8, q.codes, {}};
  const DeviceGuard guard(q.device().index);
  const bool shares = bits == result.bits && result.depth == result.k && reinterpret_cast<std::uintptr_t>(q.codes.data()) % kAlignment == 0;
  if (!shares) result.codes = Buffer::allocate(static_cast<std::size_t>(result.rows * result.depth * result.bits / 8), q.device());
  result.exponents = Buffer::allocate(static_cast<std::size_t>(result.depth / 64 * padded_msfp_rows(result.rows)) * 4, q.device());
  check(launch_prepare_msfp({matrix.rows, matrix.cols, bits, q.codes.as<std::uint8_t>(), q.scales.as<std::uint8_t>()}, view_of(result),
                            stream),
        "prepare_msfp");
  return result;
}

DeviceQuantized unprepare_msfp(const MsfpMatrix& q, Stream stream) {
  DeviceQuantized result = allocate_quantized(q.scheme, {q.rows, q.k}, q.device());
  const DeviceGuard guard(q.device().index);
  check(launch_unprepare_msfp(
            view_of(q), {q.rows, q.k, q.scheme.element.bits, result.codes.as<std::uint8_t>(), result.scales.as<std::uint8_t>()}, stream),
        "unprepare_msfp");
  return result;
}

std::size_t msfp_matmul_workspace(const MsfpMatrix& x, const MsfpMatrix& w) { return msfp_scratch_bytes(view_of(x), view_of(w)); }

void matmul(const MsfpMatrix& x, const MsfpMatrix& w, const Tensor& y, Stream stream, const MsfpMatmulOptions& options,
            Workspace workspace) {
  const MsfpProblem problem = problem_of(x, w, y, options);
  require(options.kernel.empty() || options.kernel == kHopperName || options.kernel == kAnyName,
          fmt::format("there is no kernel {}", options.kernel));
  if (y.size() == 0) return;
  const DeviceGuard guard(x.device().index);
  const bool is_hopper = byte_device().is_hopper;
  if (options.kernel == kHopperName && !is_hopper)
    throw Unsupported(fmt::format("matmul: the kernel {} does not run on this device", options.kernel));
  if (options.kernel == kAnyName || !is_hopper) return check(launch_msfp_product_any(problem, stream), kAnyName);
  const Scratch scratch(msfp_matmul_workspace(x, w), workspace, stream);
  check(launch_msfp_product(problem, scratch.data(), stream), "matmul");
}

std::vector<std::string> msfp_matmul_kernel_names() { return {std::string(kHopperName), std::string(kAnyName)}; }

}  // namespace narrow::cuda
