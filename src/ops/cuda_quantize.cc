/// quantize and its relatives on a CUDA device: validate -> find -> scratch -> launch. Nothing here waits.

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "format/packing.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/quantize.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

std::size_t scale_bytes(const Format& format) { return format.bits / 8u; }

void require(bool condition, const std::string& sentence) {
  if (!condition) throw InvalidArgument(sentence);
}

void require_on_device(const char* op, Device device) {
  if (device.is_cpu())
    throw InvalidArgument(
        fmt::format("{}: the tensor is on the CPU; copy it with cuda::to_device, or call the function without cuda::", op));
  require_device(device.index);
}

void require_floating(const char* op, DType dtype) {
  require(is_floating(dtype), fmt::format("{}: {} values are not supported; use F32, F16 or BF16", op, name_of(dtype)));
}

/// The stride between rows; throws where rows are not evenly spaced runs of contiguous columns.
std::int64_t plain_row_stride(const Tensor& x) {
  const MatrixShape matrix = as_matrices(x.shape());
  if (x.rank() < 2 || x.size() == 0 || x.is_contiguous()) return matrix.cols;
  const Shape& shape = x.shape();
  const Shape& strides = x.strides();
  const std::size_t last = shape.size() - 1;
  bool plain = shape[last] == 1 || strides[last] == 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) plain = plain && (shape[i] == 1 || strides[i] == strides[i + 1] * shape[i + 1]);
  require(plain, "quantize: on a device the columns must be contiguous and the rows evenly spaced; make the tensor contiguous first");
  return strides[last - 1];
}

const float* scale_pointer(const std::optional<Tensor>& tensor, std::int64_t count, Device device, const char* what) {
  if (!tensor) return nullptr;
  require(tensor->dtype() == DType::kF32 && tensor->is_contiguous() && tensor->size() == count && tensor->device() == device,
          fmt::format("quantize: {} must be {} contiguous fp32 values on the tensor's device", what, count));
  return tensor->as<float>();
}

QuantizeProblem problem_of(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  require_on_device("quantize", x.device());
  require_floating("quantize", x.dtype());
  require(scheme.element.bits <= 16, fmt::format("quantize: {} is not narrower than its input", scheme.to_string()));
  const MatrixShape matrix = as_matrices(x.shape());
  QuantizeProblem problem;
  problem.x = x.data();
  problem.dtype = x.dtype();
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.row_stride = plain_row_stride(x);
  problem.scheme = scheme;
  problem.grid = scale_grid(scheme, x.shape());
  problem.rounding = options.rounding;
  problem.overflow = options.overflow;
  problem.seed = options.seed;
  problem.row_bytes = packed_row_bytes(scheme, matrix.cols);
  problem.given_scales = scale_pointer(options.scales, problem.grid.count(), x.device(), "static scales");
  problem.given_outer_scale = scale_pointer(options.outer_scale, 1, x.device(), "the outer scale");
  if (options.scales) {
    require(scheme.asymmetric == options.zero_points.has_value(),
            "quantize: static zero points belong to asymmetric schemes, and those need them");
    if (scheme.has_outer_scale) throw Unsupported("quantize: static scales for a scheme with an outer scale are not defined");
  }
  require(!options.outer_scale || scheme.has_outer_scale, fmt::format("quantize: {} has no outer scale", scheme.to_string()));
  if (options.zero_points) {
    const Tensor& zeros = *options.zero_points;
    require(zeros.dtype() == DType::kU8 && zeros.is_contiguous() && zeros.size() == problem.grid.count() && zeros.device() == x.device(),
            fmt::format("quantize: static zero points must be {} contiguous bytes on the tensor's device", problem.grid.count()));
    problem.given_zero_points = zeros.as<std::uint8_t>();
  }
  if (options.flags) {
    require(options.flags->dtype() == DType::kU32 && options.flags->size() == 1 && options.flags->device() == x.device(),
            "quantize: flags must be one u32 on the tensor's device");
    problem.flags = options.flags->as<std::uint32_t>();
  }
  return problem;
}

void set_outputs(QuantizeProblem& problem, const DeviceQuantized& q) {
  problem.codes = q.codes.as<std::uint8_t>();
  problem.scales = q.scales.data();
  problem.zero_points = q.zero_points.as<std::uint8_t>();
  problem.outer_scale = q.outer_scale.as<float>();
}

template <typename Kernel, typename Problem>
const Kernel& find(std::span<const Kernel> table, const Problem& problem, std::string_view wanted) {
  for (const Kernel& kernel : table) {
    if (!wanted.empty() && wanted != kernel.name) continue;
    if (kernel.accepts(problem)) return kernel;
    if (!wanted.empty()) throw Unsupported(fmt::format("the kernel {} does not take this problem", wanted));
  }
  if (wanted.empty()) throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
  throw InvalidArgument(fmt::format("there is no CUDA kernel '{}'", wanted));
}

void require_parts(const DeviceQuantized& q, const Shape& shape, Device device) {
  const MatrixShape matrix = as_matrices(shape);
  const std::size_t cells = static_cast<std::size_t>(scale_grid(q.scheme, shape).count());
  const auto expect = [&](const char* part, const Buffer& buffer, std::size_t size) {
    require(buffer.size() >= size && (size == 0 || buffer.device() == device),
            fmt::format("{} of {} in {} take {} bytes on the tensor's device; allocate_quantized makes them", part, to_string(shape),
                        q.scheme.to_string(), size));
  };
  require(q.shape == shape, fmt::format("quantize: {} was allocated for {}", to_string(shape), to_string(q.shape)));
  expect("codes", q.codes, static_cast<std::size_t>(matrix.total_rows()) * packed_row_bytes(q.scheme, matrix.cols));
  expect("scales", q.scales, cells * scale_bytes(q.scheme.scale));
  expect("zero points", q.zero_points, q.scheme.asymmetric ? cells : 0);
  expect("outer scale", q.outer_scale, q.scheme.has_outer_scale ? sizeof(float) : 0);
}

std::size_t round_up(std::size_t size) { return (size + 255) / 256 * 256; }

}  // namespace

void copy(const Tensor& from, const Tensor& to, Stream stream) {
  require(from.dtype() == to.dtype() && from.size() == to.size() && from.is_contiguous() && to.is_contiguous(),
          "copy: both tensors must be contiguous, of one type and size");
  copy_bytes(to.data(), from.data(), from.byte_size(), stream);
}

Tensor to_device(const Tensor& x, Device device, Stream stream) {
  require_on_device("to_device", device);
  Tensor y = Tensor::empty(x.dtype(), x.shape(), device);
  copy(x.contiguous(), y, stream);
  if (!x.is_contiguous()) synchronize(stream);  // the contiguous copy ends with this call
  return y;
}

Tensor to_host(const Tensor& x, Stream stream) {
  Tensor y = Tensor::empty(x.dtype(), x.shape());
  copy(x, y, stream);
  synchronize(stream);
  return y;
}

DeviceQuantized allocate_quantized(const Scheme& scheme, const Shape& shape, Device device) {
  require_on_device("allocate_quantized", device);
  const MatrixShape matrix = as_matrices(shape);
  const std::size_t cells = static_cast<std::size_t>(scale_grid(scheme, shape).count());
  DeviceQuantized q{scheme, shape, {}, {}, {}, {}};
  q.codes = Buffer::allocate(static_cast<std::size_t>(matrix.total_rows()) * packed_row_bytes(scheme, matrix.cols), device);
  q.scales = Buffer::allocate(cells * scale_bytes(scheme.scale), device);
  q.zero_points = Buffer::allocate(scheme.asymmetric ? cells : 0, device);
  q.outer_scale = Buffer::allocate(scheme.has_outer_scale ? sizeof(float) : 0, device);
  return q;
}

DeviceQuantized to_device(const QuantizedTensor& q, Device device, Stream stream) {
  DeviceQuantized result = allocate_quantized(q.scheme, q.shape, device);
  copy_bytes(result.codes.data(), q.codes.data(), q.codes.size(), stream);
  copy_bytes(result.scales.data(), q.scales.data(), q.scales.size(), stream);
  copy_bytes(result.zero_points.data(), q.zero_points.data(), q.zero_points.size(), stream);
  if (q.scheme.has_outer_scale) copy_bytes(result.outer_scale.data(), &q.outer_scale, sizeof(float), stream);
  return result;
}

QuantizedTensor to_host(const DeviceQuantized& q, Stream stream) {
  const auto fetch = [&](const Buffer& from) {
    Buffer to = Buffer::allocate(from.size());
    copy_bytes(to.data(), from.data(), from.size(), stream);
    return to;
  };
  QuantizedTensor result{q.scheme, q.shape, fetch(q.codes), fetch(q.scales), fetch(q.zero_points), 1.0f};
  if (q.scheme.has_outer_scale) copy_bytes(&result.outer_scale, q.outer_scale.data(), sizeof(float), stream);
  synchronize(stream);
  return result;
}

std::size_t quantize_workspace(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  const QuantizeProblem problem = problem_of(x, scheme, options);
  std::size_t size = 0;  // which row runs depends on the codes' alignment, too: enough for any
  for (const QuantizeKernel& kernel : quantize_kernels()) size = std::max(size, kernel.workspace(problem));
  return size;
}

void quantize(const Tensor& x, const DeviceQuantized& q, Stream stream, const QuantizeOptions& options, Workspace workspace) {
  QuantizeProblem problem = problem_of(x, q.scheme, options);
  require_parts(q, x.shape(), x.device());
  set_outputs(problem, q);
  const QuantizeKernel& kernel = find(quantize_kernels(), problem, options.kernel);
  if (problem.rows == 0 || problem.cols == 0) return;
  const DeviceGuard guard(x.device().index);
  const Scratch scratch(kernel.workspace(problem), workspace, stream);
  problem.workspace = scratch.data();
  check(kernel.launch(problem, stream), kernel.name);
}

void dequantize(const DeviceQuantized& q, const Tensor& y, Stream stream, std::string_view wanted) {
  require_on_device("dequantize", q.device());
  require_floating("dequantize", y.dtype());
  require(y.shape() == q.shape && y.is_contiguous() && y.device() == q.device(),
          "dequantize: the output must be contiguous, of the same shape and device");
  require_parts(q, q.shape, q.device());
  const MatrixShape matrix = as_matrices(q.shape);
  DequantizeProblem problem;
  problem.codes = q.codes.as<std::uint8_t>();
  problem.row_bytes = packed_row_bytes(q.scheme, matrix.cols);
  problem.scales = q.scales.data();
  problem.zero_points = q.zero_points.as<std::uint8_t>();
  problem.outer_scale = q.outer_scale.as<float>();
  problem.scheme = q.scheme;
  problem.grid = scale_grid(q.scheme, q.shape);
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.y = y.data();
  problem.dtype = y.dtype();
  const DequantizeKernel& kernel = find(dequantize_kernels(), problem, wanted);
  if (problem.rows == 0 || problem.cols == 0) return;
  const DeviceGuard guard(q.device().index);
  check(kernel.launch(problem, stream), kernel.name);
}

void requantize(const DeviceQuantized& from, const DeviceQuantized& to, Stream stream, const QuantizeOptions& options,
                Workspace workspace) {
  require_on_device("requantize", from.device());
  const DeviceGuard guard(from.device().index);
  const std::size_t values = round_up(static_cast<std::size_t>(element_count(from.shape)) * sizeof(float));
  const Tensor shape_only = Tensor::borrow(static_cast<void*>(nullptr), DType::kF32, from.shape, {}, from.device());
  const std::size_t size = values + quantize_workspace(shape_only, to.scheme, options);
  const Scratch scratch(size, workspace, stream);
  const Tensor x = Tensor::borrow(scratch.data(), DType::kF32, from.shape, {}, from.device());
  dequantize(from, x, stream);
  quantize(x, to, stream, options, {static_cast<std::byte*>(scratch.data()) + values, size - values});
}

void fake_quantize(const Tensor& x, const Tensor& y, const Scheme& scheme, Stream stream, const QuantizeOptions& options,
                   Workspace workspace) {
  require_on_device("fake_quantize", x.device());
  require(y.dtype() == x.dtype() && y.shape() == x.shape(), "fake_quantize: the output must have the input's type and shape");
  const DeviceGuard guard(x.device().index);
  const MatrixShape matrix = as_matrices(x.shape());
  const std::size_t cells = static_cast<std::size_t>(scale_grid(scheme, x.shape()).count());
  const std::size_t codes = round_up(static_cast<std::size_t>(matrix.total_rows()) * packed_row_bytes(scheme, matrix.cols));
  const std::size_t scales = round_up(cells * scale_bytes(scheme.scale)), zeros = round_up(scheme.asymmetric ? cells : 0);
  const std::size_t more = quantize_workspace(x, scheme, options);
  const Scratch scratch(codes + scales + zeros + 256 + more, workspace, stream);
  std::byte* data = static_cast<std::byte*>(scratch.data());
  DeviceQuantized q{scheme, x.shape(), {}, {}, {}, {}};
  q.codes = Buffer::borrow(data, codes, x.device());
  q.scales = Buffer::borrow(data + codes, scales, x.device());
  q.zero_points = Buffer::borrow(data + codes + scales, zeros, x.device());
  q.outer_scale = Buffer::borrow(data + codes + scales + zeros, 256, x.device());
  quantize(x, q, stream, options, {data + codes + scales + zeros + 256, more});
  dequantize(q, y, stream);
}

std::vector<std::string> quantize_kernel_names() {
  std::vector<std::string> names;
  for (const QuantizeKernel& kernel : quantize_kernels()) names.emplace_back(kernel.name);
  return names;
}

std::vector<std::string> dequantize_kernel_names() {
  std::vector<std::string> names;
  for (const DequantizeKernel& kernel : dequantize_kernels()) names.emplace_back(kernel.name);
  return names;
}

std::string explain_quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  return find(quantize_kernels(), problem_of(x, scheme, options), options.kernel).name;
}

void observe_range(const Tensor& x, const Tensor& range, Stream stream) {
  require_on_device("observe_range", x.device());
  require_floating("observe_range", x.dtype());
  require(x.is_contiguous(), "observe_range: the tensor must be contiguous");
  require(range.dtype() == DType::kU32 && range.size() == 4 && range.device() == x.device(),
          "observe_range: the range must be 4 u32 on the tensor's device");
  const DeviceGuard guard(x.device().index);
  check(launch_observe_range(x.data(), x.dtype(), x.size(), range.as<std::uint32_t>(), stream), "observe_range");
}

Range read_range(const Tensor& range, Stream stream) {
  const Tensor host = to_host(range, stream);
  const float* values = reinterpret_cast<const float*>(host.data());
  Range result{std::max(values[0], values[1]), -values[0], values[1], host.as<std::uint32_t>()[3]};
  if (result.minimum == 0.0f) result.minimum = 0.0f;  // not -0
  return result;
}

void observe_histogram(const Tensor& x, const Tensor& counts, float limit, Stream stream) {
  require_on_device("observe_histogram", x.device());
  require_floating("observe_histogram", x.dtype());
  require(x.is_contiguous(), "observe_histogram: the tensor must be contiguous");
  require(counts.dtype() == DType::kU64 && counts.is_contiguous() && counts.size() > 0 && counts.size() <= 1 << 20 &&
              counts.device() == x.device(),
          "observe_histogram: counts must be 1 to 2^20 contiguous u64 on the tensor's device");
  require(limit > 0.0f, "observe_histogram: the limit must be positive");
  const DeviceGuard guard(x.device().index);
  check(launch_observe_histogram(x.data(), x.dtype(), x.size(), counts.as<unsigned long long>(), static_cast<int>(counts.size()), limit,
                                 stream),
        "observe_histogram");
}

void convert(const Tensor& x, const Tensor& y, Stream stream, Overflow overflow) {
  require_on_device("convert", x.device());
  require_floating("convert", x.dtype());
  require_floating("convert", y.dtype());
  require(x.is_contiguous() && y.is_contiguous() && x.size() == y.size() && x.device() == y.device(),
          "convert: both tensors must be contiguous, of one size and device");
  const DeviceGuard guard(x.device().index);
  check(launch_convert(x.data(), x.dtype(), y.data(), y.dtype(), x.size(), overflow, stream), "convert");
}

}  // namespace narrow::cuda
