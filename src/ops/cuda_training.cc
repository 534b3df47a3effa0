/// Training pieces on a CUDA device: validate -> scratch -> launch. Nothing here waits.

#include <cmath>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/training.h"
#include "narrow/cuda_training.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

void require(bool condition, const char* op, const char* sentence) {
  if (!condition) throw InvalidArgument(fmt::format("{}: {}", op, sentence));
}

void require_on_device(const char* op, Device device) {
  require(!device.is_cpu(), op, "the tensors must be on a CUDA device; copy them with cuda::to_device");
  require_device(device.index);
}

bool is_state(const Tensor& x, DType dtype, std::int64_t count, Device device) {
  return x.dtype() == dtype && x.is_contiguous() && x.size() == count && x.device() == device;
}

void check_scheme(const Scheme& scheme) {
  const Granularity& granularity = scheme.granularity;
  const bool grid =
      granularity.kind == Granularity::Kind::kTensor || (granularity.kind == Granularity::Kind::kRectangle && granularity.rows == 1);
  if (!grid || scheme.asymmetric || scheme.has_outer_scale || scheme.element.bits > 16)
    throw Unsupported(
        fmt::format("fake_quantize_backward: {}; use a symmetric scheme with tensor, row or block scales", scheme.to_string()));
}

}  // namespace

std::size_t fake_quantize_backward_workspace(const Shape& shape, const Scheme& scheme, bool learned_step) {
  const bool whole = scheme.granularity.kind == Granularity::Kind::kTensor;
  return whole && learned_step ? static_cast<std::size_t>(as_matrices(shape).total_rows()) * sizeof(double) : 0;
}

void fake_quantize_backward(const FakeQuantizeGradients& gradients, const Scheme& scheme, Stream stream, Workspace workspace) {
  constexpr const char* kOp = "fake_quantize_backward";
  const Device device = gradients.x.device();
  require_on_device(kOp, device);
  check_scheme(scheme);
  const Tensor& x = gradients.x;
  require(is_floating(x.dtype()), kOp, "x must be F32, F16 or BF16");
  for (const Tensor* tensor : {&gradients.x, &gradients.grad_y, &gradients.grad_x})
    require(tensor->shape() == x.shape() && tensor->dtype() == x.dtype() && tensor->is_contiguous() && tensor->device() == device, kOp,
            "x and the gradients of x and y must be contiguous, of one shape, type and device");
  const MatrixShape matrix = as_matrices(x.shape());
  const ScaleGrid grid = scale_grid(scheme, x.shape());
  require(is_state(gradients.scales, DType::kF32, grid.count(), device), kOp,
          "scales must be contiguous fp32 values on the device, one per cell of the scale grid");
  require(!gradients.grad_scales || is_state(*gradients.grad_scales, DType::kF32, grid.count(), device), kOp,
          "the gradients of scales must be contiguous fp32 values on the device, one per cell of the scale grid");
  if (x.size() == 0) return;
  const DeviceGuard guard(device.index);
  const Scratch scratch(fake_quantize_backward_workspace(x.shape(), scheme, gradients.grad_scales.has_value()), workspace, stream);
  FakeQuantizeBackwardProblem problem;
  problem.x = x.data();
  problem.grad_y = gradients.grad_y.data();
  problem.grad_x = gradients.grad_x.data();
  problem.dtype = x.dtype();
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.format = scheme.element;
  problem.width = grid.whole_tensor || scheme.granularity.cols == 0 ? matrix.cols : scheme.granularity.cols;
  problem.whole_tensor = grid.whole_tensor;
  problem.scales = gradients.scales.as<float>();
  problem.grad_scales = gradients.grad_scales ? gradients.grad_scales->as<float>() : nullptr;
  problem.factor = gradients.factor;
  problem.row_sums = static_cast<double*>(scratch.data());
  check(launch_fake_quantize_backward(problem, stream), kOp);
}

void unscale_gradient(const Tensor& gradient, const Tensor& scale, const Tensor& out, const Tensor& flags, Stream stream) {
  constexpr const char* kOp = "unscale_gradient";
  const Device device = gradient.device();
  require_on_device(kOp, device);
  require(is_floating(gradient.dtype()) && is_floating(out.dtype()), kOp, "gradients must be F32, F16 or BF16");
  require(gradient.is_contiguous() && out.is_contiguous() && gradient.size() == out.size() && out.device() == device, kOp,
          "both tensors must be contiguous, of one size and device");
  require(is_state(scale, DType::kF32, 1, device) && is_state(flags, DType::kU32, 1, device), kOp,
          "the scale must be one fp32 and the flags one u32 on the device");
  const DeviceGuard guard(device.index);
  check(launch_unscale(gradient.data(), gradient.dtype(), scale.as<float>(), out.data(), out.dtype(), gradient.size(),
                       flags.as<std::uint32_t>(), stream),
        kOp);
}

void update_loss_scale(const Tensor& scale, const Tensor& steps, const Tensor& flags, const LossScaleOptions& options, Stream stream) {
  constexpr const char* kOp = "update_loss_scale";
  const Device device = scale.device();
  require_on_device(kOp, device);
  require(is_state(scale, DType::kF32, 1, device) && is_state(steps, DType::kU32, 1, device) && is_state(flags, DType::kU32, 1, device),
          kOp, "the scale must be one fp32, steps and flags one u32 each, on one device");
  require(options.growth >= 1.0f && options.backoff > 0.0f && options.backoff <= 1.0f && options.interval > 0, kOp,
          "growth is at least 1, backoff in (0, 1], the interval at least 1");
  const DeviceGuard guard(device.index);
  check(launch_update_loss_scale(scale.as<float>(), steps.as<std::uint32_t>(), flags.as<std::uint32_t>(), options, stream), kOp);
}

void update_amax_history(const Tensor& history, const Tensor& amax, const Tensor& scales, const DelayedScalingOptions& options,
                         Stream stream) {
  constexpr const char* kOp = "update_amax_history";
  const Device device = history.device();
  require_on_device(kOp, device);
  require(history.rank() == 2 && history.shape()[1] >= 1 && history.shape()[1] <= 1024 &&
              is_state(history, DType::kF32, history.size(), device),
          kOp, "the history must be fp32 [tensors, 1 to 1024], contiguous");
  const std::int64_t tensors = history.shape()[0];
  require(is_state(amax, DType::kF32, tensors, device) && is_state(scales, DType::kF32, tensors, device), kOp,
          "amax and scales must be one fp32 per tensor on the history's device");
  require(options.largest > 0.0f && options.margin >= -64 && options.margin <= 64, kOp,
          "the largest value must be positive, the margin within +-64");
  const DeviceGuard guard(device.index);
  check(launch_update_amax_history(history.as<float>(), amax.as<float>(), scales.as<float>(), tensors, static_cast<int>(history.shape()[1]),
                                   options, std::ldexp(1.0f, options.margin), stream),
        kOp);
}

}  // namespace narrow::cuda
