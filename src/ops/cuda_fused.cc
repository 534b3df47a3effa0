/// The fused neighbours and layouts on a CUDA device: validate -> find -> launch. Nothing here waits or allocates.

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/fused.h"
#include "narrow/cuda_fused.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

void require(bool condition, std::string_view sentence) {
  if (!condition) throw InvalidArgument(std::string("fused_quantize: ").append(sentence));
}

void require_values(const Tensor& x, Device device, const char* what) {
  if (x.device() != device)
    throw InvalidArgument(fmt::format("fused_quantize: {} must be on x's CUDA device; copy it with cuda::to_device", what));
  if (!is_floating(x.dtype()))
    throw InvalidArgument(fmt::format("fused_quantize: {} is {}; use F32, F16 or BF16", what, name_of(x.dtype())));
}

std::int64_t plain_row_stride(const Tensor& x) {
  const std::int64_t cols = as_matrices(x.shape()).cols;
  if (x.rank() < 2 || x.size() == 0 || x.is_contiguous()) return cols;
  const Shape& shape = x.shape();
  const Shape& strides = x.strides();
  const std::size_t last = shape.size() - 1;
  bool plain = shape[last] == 1 || strides[last] == 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) plain = plain && (shape[i] == 1 || strides[i] == strides[i + 1] * shape[i + 1]);
  require(plain, "on a device the columns must be contiguous and the rows evenly spaced; make the tensor contiguous first");
  return strides[last - 1];
}

void check_scheme(const FusedOutput& out, bool given) {
  const Scheme& scheme = out.scheme;
  const Granularity& granularity = scheme.granularity;
  const bool element = scheme.element == kInt8 || scheme.element == kFp8E4m3;
  const bool by_row = granularity == Granularity::row() || granularity == Granularity::block(128);
  const bool whole = granularity.kind == Granularity::Kind::kTensor && given;
  if (!element || scheme.asymmetric || scheme.has_outer_scale || scheme.scale != kFp32 || scheme.rule != ScaleRule::kLargest ||
      (!by_row && !whole))
    throw Unsupported(
        fmt::format("fused_quantize: {} on a CUDA device; use int8 or fp8_e4m3 with row or block128 scales in fp32, or static scales",
                    scheme.to_string()));
  if (out.layout != Layout::kRow && (out.layout != Layout::kCol32 || scheme.element != kInt8))
    throw Unsupported(fmt::format("fused_quantize: {} in layout {}; int8 can be written in col32, all else row by row", scheme.to_string(),
                                  name_of(out.layout)));
  require(!out.transposed_scales || granularity == Granularity::block(128), "transposed scales belong to block128 schemes");
}

std::size_t code_bytes(const FusedOutput& out, const MatrixShape& matrix) {
  return static_cast<std::size_t>(matrix.matrices * layout_size(out.layout, matrix.rows, matrix.cols));
}

std::int64_t scale_count(const FusedOutput& out, const MatrixShape& matrix) {
  const ScaleGrid grid = scale_grid(out.scheme, out.shape);
  return out.transposed_scales ? grid.cols * padded_scale_rows(matrix.total_rows()) : grid.count();
}

FusedProblem fused_problem(const FusedInput& input, const MatrixShape& matrix) {
  const Device device = input.x.device();
  if (device.is_cpu())
    throw InvalidArgument("fused_quantize: x is on the CPU; copy it with cuda::to_device, or call the function without cuda::");
  require_device(device.index);
  require_values(input.x, device, "x");
  const bool needs_other = input.op == FusedOp::kSiluMul || input.op == FusedOp::kAddRmsNorm;
  const bool norm = input.op == FusedOp::kLayerNorm || input.op == FusedOp::kRmsNorm || input.op == FusedOp::kAddRmsNorm;
  require(needs_other == input.other.has_value(), "a second tensor belongs to kSiluMul (up) and kAddRmsNorm (residual), and those need it");
  require(norm || !input.weight, "a weight belongs to the norms");
  require(input.op == FusedOp::kLayerNorm || !input.bias, "a bias belongs to LayerNorm");
  require(input.epsilon >= 0.0f, "epsilon must not be negative");
  require(!input.zero_points, "zero points belong to asymmetric schemes, which a CUDA device does not take here");
  FusedProblem fused;
  fused.op = input.op;
  fused.dtype = input.x.dtype();
  fused.rows = matrix.total_rows();
  fused.cols = matrix.cols;
  fused.x = input.x.data();
  fused.x_stride = plain_row_stride(input.x);
  fused.epsilon = input.epsilon;
  if (input.other) {
    require_values(*input.other, device, "the second tensor");
    require(input.other->shape() == input.x.shape() && input.other->dtype() == input.x.dtype(),
            "the second tensor must have x's shape and type");
    fused.other = fused.residual = input.other->data();
    fused.other_stride = plain_row_stride(*input.other);
  }
  for (const auto& vector : {input.weight, input.bias})
    if (vector) {
      require_values(*vector, device, "a norm's weight or bias");
      require(vector->is_contiguous() && vector->size() == matrix.cols && (!input.weight || vector->dtype() == input.weight->dtype()),
              "weight and bias must be contiguous, of one type, one value per column");
      fused.weight_dtype = vector->dtype();
    }
  fused.weight = input.weight ? input.weight->data() : nullptr;
  fused.bias = input.bias ? input.bias->data() : nullptr;
  return fused;
}

}  // namespace

FusedOutput allocate_fused(const Scheme& scheme, const Shape& shape, Device device, Layout layout, bool transposed_scales) {
  FusedOutput out{scheme, shape, layout, transposed_scales, {}, {}};
  check_scheme(out, true);
  const MatrixShape matrix = as_matrices(shape);
  out.codes = Buffer::allocate(code_bytes(out, matrix), device);
  out.scales = Buffer::allocate(static_cast<std::size_t>(scale_count(out, matrix)) * sizeof(float), device);
  return out;
}

void fused_quantize(const FusedInput& input, const FusedOutput& out, Stream stream, std::string_view wanted) {
  const MatrixShape matrix = as_matrices(input.x.shape());
  FusedQuantizeProblem problem;
  problem.fused = fused_problem(input, matrix);
  check_scheme(out, input.scales.has_value());
  require(out.shape == input.x.shape(), "the output must have x's shape");
  require(out.codes.device() == input.x.device() && out.scales.device() == input.x.device(), "codes and scales must be on x's device");
  const ScaleGrid grid = scale_grid(out.scheme, out.shape);
  const std::size_t scale_bytes = static_cast<std::size_t>(scale_count(out, matrix)) * sizeof(float);
  if (out.codes.size() != code_bytes(out, matrix) || out.scales.size() != scale_bytes)
    throw InvalidArgument(
        fmt::format("fused_quantize: the output has {} bytes of codes and {} of scales, it must have {} and {}; use allocate_fused",
                    out.codes.size(), out.scales.size(), code_bytes(out, matrix), scale_bytes));
  problem.element = out.scheme.element == kInt8 ? Element::kInt8 : Element::kE4m3;
  problem.per_block = out.scheme.granularity == Granularity::block(128);
  problem.codes = out.codes.as<std::uint8_t>();
  problem.row_bytes = matrix.cols;
  problem.col32 = out.layout == Layout::kCol32;
  problem.matrix_rows = matrix.rows;
  problem.scales = out.scales.as<float>();
  problem.scale_rows = out.transposed_scales ? padded_scale_rows(problem.fused.rows) : problem.fused.rows;
  const ScaleSteps plain = grid.whole_tensor ? ScaleSteps{} : ScaleSteps{grid.cols, 1};
  problem.steps = out.transposed_scales ? ScaleSteps{1, problem.scale_rows} : plain;
  if (input.scales) {
    require(input.scales->dtype() == DType::kF32 && input.scales->is_contiguous() && input.scales->size() == grid.count() &&
                input.scales->device() == input.x.device(),
            "static scales must be contiguous fp32 values on x's device, one per cell of the scale grid");
    problem.given = input.scales->as<float>();
    problem.given_steps = plain;
  }
  if (problem.fused.rows == 0 || problem.fused.cols == 0) return;
  const DeviceGuard guard(input.x.device().index);
  for (const FusedQuantizeKernel& kernel : fused_quantize_kernels())
    if ((wanted.empty() || wanted == kernel.name) && kernel.accepts(problem)) return check(kernel.launch(problem, stream), kernel.name);
  throw Unsupported(fmt::format("fused_quantize: no kernel {} takes {} columns; leave the name out", wanted, matrix.cols));
}

std::vector<std::string> fused_quantize_kernel_names() {
  std::vector<std::string> names;
  for (const FusedQuantizeKernel& kernel : fused_quantize_kernels()) names.emplace_back(kernel.name);
  return names;
}

void transform(const Tensor& data, const Tensor& result, const Shape& shape, Layout from, Layout to, Stream stream) {
  element_count(shape);
  const MatrixShape matrix = as_matrices(shape);
  if (data.device().is_cpu() || result.device() != data.device())
    throw InvalidArgument("transform: both tensors must be on one CUDA device; copy them with cuda::to_device");
  require_device(data.device().index);
  const std::int64_t in = matrix.matrices * layout_size(from, matrix.rows, matrix.cols),
                     out = matrix.matrices * layout_size(to, matrix.rows, matrix.cols);
  if (bits_of(data.dtype()) != 8 || bits_of(result.dtype()) != 8 || !data.is_contiguous() || !result.is_contiguous() || data.size() != in ||
      result.size() != out)
    throw InvalidArgument(fmt::format("transform: {} takes {} contiguous bytes in {} and {} in {}; the tensors have {} and {} elements",
                                      to_string(shape), in, name_of(from), out, name_of(to), data.size(), result.size()));
  if (out == 0) return;
  const DeviceGuard guard(data.device().index);
  check(launch_transform({reinterpret_cast<const std::uint8_t*>(data.data()), reinterpret_cast<std::uint8_t*>(result.data()),
                          matrix.matrices, matrix.rows, matrix.cols, from, to},
                         stream),
        "transform");
}

}  // namespace narrow::cuda
