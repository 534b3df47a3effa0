#include "methods/cuda/device_fit.h"

#include <algorithm>
#include <numeric>
#include <vector>

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
          "a weight has values that are NaN or infinite; a method computes with them, so they must be finite: mend the tensor");
  }

  /// Scales by search from the weight as it is, for the least weighted error; codes follow.
  void search_scales(const double* importance) {
    for (std::int64_t col = 0; col < k_; col += tile()) search_rectangles(w_.as<float>(), col, importance);
  }

  /// Codes column by column: by GPTQ, its scales searched on the way or beforehand; without a factor by rounding with the scales there are.
  void round_columns(const DeviceFactor* factor, bool clip) {
    using std::int64_t;
    const Buffer errors = Buffer::allocate(static_cast<std::size_t>(cuda::kColumnBlock * n_) * sizeof(float), device_);
    const Buffer order = factor != nullptr ? factor->order : own_order();
    const bool in_order = factor == nullptr || factor->in_order;
    const bool searches = factor != nullptr && clip && q_.scheme.has_scales() && !grid().whole_tensor && (in_order || tile() >= k_);
    const bool by_tiles = searches && in_order;
    Buffer importance;
    if (factor != nullptr && clip && q_.scheme.has_scales()) {
      importance = Buffer::allocate(static_cast<std::size_t>(k_) * sizeof(double), device_);
      check(cuda::launch_importance(factor->upper.as<float>(), k_, order.as<std::int32_t>(), importance.as<double>(), stream_),
            "importance");
      if (!searches) search_scales(importance.as<double>());
    }
    float* work = error_.as<float>();  // its place is free until the loss is measured
    check(cuda::launch_permute(w_.as<float>(), n_, k_, order.as<std::int32_t>(), work, stream_), "permute");
    cuda::ColumnsProblem problem;
    problem.weight = progress();
    problem.work = work;
    problem.upper = factor != nullptr ? factor->upper.as<float>() : nullptr;
    problem.order = order.as<std::int32_t>();
    problem.errors = errors.as<float>();
    for (int64_t begin = 0; begin < k_;) {
      const int64_t end = by_tiles ? block_end(begin) : std::min<int64_t>(k_, begin + cuda::kColumnBlock);
      problem.begin = begin;
      problem.width = static_cast<int>(end - begin);
      for (int64_t first = begin; first < end; first = begin + problem.last) {
        problem.first = static_cast<int>(first - begin);
        problem.last = static_cast<int>((by_tiles ? std::min(end, (first / tile() + 1) * tile()) : end) - begin);
        if (searches && first % tile() == 0) search_from(work, first, *factor, importance.as<double>());
        check(cuda::launch_round_columns(problem, stream_), "round_columns");
      }
      if (factor != nullptr && end < k_)
        check(cuda::launch_subtract_product(problem.errors, problem.width, static_cast<int>(n_), problem.upper + begin * k_ + end,
                                            static_cast<int>(k_ - end), k_, work + end, stream_),
              "carry_errors");
      begin = end;
    }
    pack();
    cuda::synchronize(stream_);  // before the errors go
  }

  /// Codes and scales improved one at a time, from where they are.
  void refine(const Buffer& damped, int sweeps) {
    unpack();
    const Tensor gradient = Tensor::empty(DType::kF32, w_.shape(), device_);
    cuda::set_bytes(gradient.data(), 0, gradient.byte_size(), stream_);
    float* errors = error_.as<float>();  // [k, n]: its place is free until the loss is measured
    check(cuda::launch_turned_errors(progress(), w_.as<float>(), errors, stream_), "turned_errors");
    check(cuda::launch_subtract_product(errors, static_cast<int>(k_), static_cast<int>(n_), damped.as<float>(), static_cast<int>(k_), k_,
                                        gradient.as<float>(), stream_),
          "gradient");
    const Buffer scratch = Buffer::allocate(cuda::refine_scratch(n_, k_), device_);
    check(cuda::launch_refine({progress(), damped.as<float>(), gradient.as<float>(), scratch.as<float>(), sweeps}, stream_), "refine");
    pack();
    cuda::synchronize(stream_);  // before gradient and scratch go
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
  ScaleGrid grid() const { return scale_grid(q_.scheme, q_.shape); }
  /// Columns that share a scale.
  std::int64_t tile() const { return !q_.scheme.has_scales() || grid().whole_tensor ? k_ : grid().tile_cols; }
  /// As on the CPU: blocks hold whole scale tiles, or lie within one: where a tile starts, all its columns are up to date.
  std::int64_t block_end(std::int64_t begin) const {
    if (tile() <= cuda::kColumnBlock) return std::min(k_, begin + cuda::kColumnBlock / tile() * tile());
    return std::min({k_, begin + cuda::kColumnBlock, (begin / tile() + 1) * tile()});
  }

  cuda::CodesInProgress progress() {
    if (codes_.size() == 0) codes_ = Buffer::allocate(static_cast<std::size_t>(n_ * k_) * sizeof(std::uint16_t), device_);
    return {q_.scheme,
            grid(),
            n_,
            k_,
            q_.scales.data(),
            q_.zero_points.as<std::uint8_t>(),
            q_.outer_scale.as<float>(),
            codes_.as<std::uint16_t>()};
  }
  void pack() {
    check(cuda::launch_pack_codes(progress().codes, n_, k_, q_.scheme.element.bits, packed_row_bytes(q_.scheme, k_),
                                  q_.codes.as<std::uint8_t>(), stream_),
          "pack_codes");
  }
  void unpack() {
    check(cuda::launch_unpack_codes(q_.codes.as<std::uint8_t>(), n_, k_, q_.scheme.element.bits, packed_row_bytes(q_.scheme, k_),
                                    progress().codes, stream_),
          "unpack_codes");
  }
  Buffer own_order() const {
    std::vector<std::int32_t> order(static_cast<std::size_t>(k_));
    std::iota(order.begin(), order.end(), 0);
    Buffer buffer = Buffer::allocate(order.size() * sizeof(std::int32_t), device_);
    cuda::copy_bytes(buffer.data(), order.data(), buffer.size(), stream_);
    cuda::synchronize(stream_);
    return buffer;
  }

  cuda::ScaleSearch search_of(const float* values, std::int64_t col) {
    return {progress(), values, col, grid().grid_col(col), static_cast<int>(std::min(tile(), k_ - col))};
  }
  void search_rectangles(const float* values, std::int64_t col, const double* importance) {
    const cuda::ScaleSearch search = search_of(values, col);
    require_scratch(cuda::rectangle_scratch(grid(), n_, search.width));
    check(cuda::launch_search_rectangles(search, importance, scratch_.data(), stream_), "search_rectangles");
  }
  /// The scales of the grid column that starts at `col`: by the scheme's rule from the values as they are now, then by search.
  void search_from(const float* work, std::int64_t col, const DeviceFactor& factor, const double* importance) {
    const cuda::ScaleSearch search = search_of(work, col);
    const Shape shape{n_, search.width};
    if (part_.shape != shape) {
      cuda::synchronize(stream_);  // before the part at hand goes
      part_ = cuda::allocate_quantized(q_.scheme, shape, device_);
    }
    cuda::QuantizeOptions options;
    if (q_.scheme.has_outer_scale) options.outer_scale = Tensor::over(q_.outer_scale, DType::kF32, {1});
    cuda::quantize(Tensor::borrow(work + col, DType::kF32, shape, {k_, 1}, device_), part_, stream_, options);
    check(cuda::launch_put_scales(search, part_.scales.data(), part_.zero_points.as<std::uint8_t>(), stream_), "put_scales");
    if (grid().tile_rows > 1) return search_rectangles(work, col, importance);
    require_scratch(cuda::search_scratch(n_, search.width));
    check(cuda::launch_search_by_rounding(search, factor.upper.as<float>(), scratch_.as<float>(), stream_), "search_by_rounding");
  }
  void require_scratch(std::size_t size) {
    if (scratch_.size() >= size) return;
    cuda::synchronize(stream_);  // before the scratch at hand goes
    scratch_ = Buffer::allocate(size, device_);
  }

  const DeviceInput& input_;
  Device device_;
  cuda::Stream stream_;
  std::int64_t n_, k_;
  Tensor w_, error_;
  cuda::DeviceQuantized q_, part_;
  Buffer codes_;    ///< u16 [n, k], made when first wanted
  Buffer scratch_;  ///< of searches
};

}  // namespace

void check_device_method(const Method& method) {
  if (method.correct || method.tune || !(method.gptq || method.clip || method.refine))
    throw Unsupported(fmt::format(
        "on a CUDA device codes are chosen by gptq, clip and refine, also after rotate, smoothquant and awq; the method {} runs "
        "on the CPU",
        method.to_string()));
}

void check_device_run(const Method& method, const MethodRun& run) {
  check_device_method(method);
  if (!run.spill.empty()) throw InvalidArgument("a CUDA device keeps no inputs of all tokens, so there is nothing to spill");
  cuda::require_device(run.device.index);
}

DeviceInput::DeviceInput(DeviceHessian moment, const Method& wanted) : hessian(std::move(moment)), method(wanted) {
  if (method.gptq) factor = hessian.factor(method.damping, method.act_order);
  if (method.refine && (factor || !method.gptq)) damped = hessian.damped(method.damping);
  const std::vector<double> energies = hessian.diagonal();
  dead_columns = std::count(energies.begin(), energies.end(), 0.0);
}

FittedWeight fit_on_device(const Tensor& w, const Scheme& scheme, const DeviceInput& input) {
  const cuda::DeviceGuard guard(input.hessian.device().index);
  const Method& method = input.method;
  DeviceWork work(w, scheme, input);
  work.round();
  FittedWeight result;
  const double energy = work.energy();
  const auto relative = [&](double loss) { return energy > 0.0 ? loss / energy : 0.0; };
  result.loss_before = result.loss_after = relative(work.loss());
  result.dead_columns = input.dead_columns;
  if (method.gptq && !input.factor) result.fallback = "the Hessian is not positive definite";
  if (input.factor) {
    work.round_columns(&*input.factor, method.clip);
    result.damping = input.factor->damping;
  } else if (method.clip && scheme.has_scales()) {
    work.search_scales(input.hessian.device_diagonal().as<double>());
    work.round_columns(nullptr, false);
  }
  if (method.refine && result.fallback.empty()) work.refine(input.damped, method.sweeps);
  if (input.factor || method.clip || method.refine) result.loss_after = relative(work.loss());
  result.quantized = work.result();
  return result;
}

}  // namespace narrow
