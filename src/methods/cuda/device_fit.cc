#include "methods/cuda/device_fit.h"

#include <algorithm>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "format/packing.h"
#include "kernels/cuda/gptq/gptq.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using cuda::check;

/// The weight's values in fp32 on the device, and where they are quantized.
class DeviceWork {
 public:
  DeviceWork(const Tensor& w, const Scheme& scheme, const DeviceInput& input)
      : input_(input),
        device_(input.hessian.device()),
        stream_(input.hessian.stream()),
        n_(w.shape()[0]),
        k_(w.shape()[1]),
        w_(Tensor::empty(DType::kF32, w.shape(), device_)),
        error_(Tensor::empty(DType::kF32, w.shape(), device_)),
        q_(cuda::allocate_quantized(scheme, w.shape(), device_)) {
    const Tensor stored = cuda::to_device(w, device_, stream_);
    cuda::convert(stored, w_, stream_);
    cuda::synchronize(stream_);  // the host's values may go now
  }

  /// Codes and scales by rounding to nearest; scales stay.
  void round() {
    const Tensor flags = Tensor::empty(DType::kU32, {1}, device_);
    cuda::set_bytes(flags.data(), 0, flags.byte_size(), stream_);
    cuda::QuantizeOptions options;
    options.flags = flags;
    cuda::quantize(w_, q_, stream_, options);
    if (*cuda::to_host(flags, stream_).as<std::uint32_t>() != 0)
      throw InvalidArgument(
          "a weight has values that are NaN or infinite; GPTQ computes with them, so they must be finite: mend the tensor");
  }

  /// Codes by GPTQ, column by column.
  void round_columns(const DeviceFactor& factor) {
    using std::int64_t;
    const Scheme& scheme = q_.scheme;
    const Buffer codes = Buffer::allocate(static_cast<std::size_t>(n_ * k_) * sizeof(std::uint16_t), device_),
                 errors = Buffer::allocate(static_cast<std::size_t>(cuda::kColumnBlock * n_) * sizeof(float), device_);
    float* work = error_.as<float>();  // its place is free until the loss is measured
    check(cuda::launch_permute(w_.as<float>(), n_, k_, factor.order.as<std::int32_t>(), work, stream_), "permute");
    cuda::ColumnsProblem problem;
    problem.scheme = scheme;
    problem.grid = scale_grid(scheme, q_.shape);
    problem.n = n_;
    problem.k = k_;
    problem.work = work;
    problem.upper = factor.upper.as<float>();
    problem.order = factor.order.as<std::int32_t>();
    problem.scales = q_.scales.data();
    problem.zero_points = q_.zero_points.as<std::uint8_t>();
    problem.outer_scale = q_.outer_scale.as<float>();
    problem.codes = codes.as<std::uint16_t>();
    problem.errors = errors.as<float>();
    for (int64_t begin = 0; begin < k_; begin += cuda::kColumnBlock) {
      problem.begin = begin;
      problem.width = static_cast<int>(std::min<int64_t>(cuda::kColumnBlock, k_ - begin));
      check(cuda::launch_round_columns(problem, stream_), "round_columns");
      if (const int64_t next = begin + cuda::kColumnBlock; next < k_)
        check(cuda::launch_carry_errors(problem.errors, static_cast<int>(n_), problem.upper, static_cast<int>(k_), static_cast<int>(next),
                                        work, stream_),
              "carry_errors");
    }
    check(cuda::launch_pack_codes(problem.codes, n_, k_, scheme.element.bits, packed_row_bytes(scheme, k_), q_.codes.as<std::uint8_t>(),
                                  stream_),
          "pack_codes");
    cuda::synchronize(stream_);  // before codes and errors go
  }

  /// tr(E X^T X E^T) of what the codes leave.
  double loss() {
    cuda::dequantize(q_, error_, stream_);
    check(cuda::launch_subtract(w_.as<float>(), n_ * k_, error_.as<float>(), stream_), "subtract");
    return input_.hessian.energy(error_);
  }
  double energy() const { return input_.hessian.energy(w_); }
  QuantizedTensor result() const { return cuda::to_host(q_, stream_); }

 private:
  const DeviceInput& input_;
  Device device_;
  cuda::Stream stream_;
  std::int64_t n_, k_;
  Tensor w_, error_;
  cuda::DeviceQuantized q_;
};

}  // namespace

void check_device_method(const Method& method) {
  if (method.gptq && !method.clip && !method.refine && !method.correct && !method.tune) return;
  throw Unsupported(
      fmt::format("on a CUDA device codes are chosen by gptq, alone or after rotate, smoothquant and awq; the method {} runs on the CPU",
                  method.to_string()));
}

void check_device_run(const Method& method, const MethodRun& run) {
  check_device_method(method);
  if (!run.spill.empty()) throw InvalidArgument("a CUDA device keeps no inputs of all tokens, so there is nothing to spill");
  cuda::require_device(run.device.index);
}

DeviceInput::DeviceInput(DeviceHessian moment, const Method& method)
    : hessian(std::move(moment)), factor(hessian.factor(method.damping, method.act_order)) {
  const std::vector<double> energies = hessian.diagonal();
  dead_columns = std::count(energies.begin(), energies.end(), 0.0);
}

FittedWeight fit_on_device(const Tensor& w, const Scheme& scheme, const DeviceInput& input) {
  const cuda::DeviceGuard guard(input.hessian.device().index);
  DeviceWork work(w, scheme, input);
  work.round();
  FittedWeight result;
  const double energy = work.energy();
  const auto relative = [&](double loss) { return energy > 0.0 ? loss / energy : 0.0; };
  result.loss_before = result.loss_after = relative(work.loss());
  result.dead_columns = input.dead_columns;
  if (input.factor) {
    work.round_columns(*input.factor);
    result.loss_after = relative(work.loss());
    result.damping = input.factor->damping;
  } else {
    result.fallback = "the Hessian is not positive definite";
  }
  result.quantized = work.result();
  return result;
}

}  // namespace narrow
