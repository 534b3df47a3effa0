#include "methods/cuda/device_hessian.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "device/cuda/runtime.h"
#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/gptq/solver.h"
#include "methods/hessian.h"

namespace narrow {
namespace {

using cuda::check;

std::size_t size_of(std::int64_t k) { return static_cast<std::size_t>(k); }
/// Kernels count channels and rows in 32 bits.
int narrowed(std::int64_t count) { return static_cast<int>(count); }

template <typename T>
Buffer upload(std::span<const T> values, Device device, cuda::Stream stream) {
  Buffer buffer = Buffer::allocate(values.size_bytes(), device);
  cuda::copy_bytes(buffer.data(), values.data(), values.size_bytes(), stream);
  cuda::synchronize(stream);
  return buffer;
}

template <typename T>
std::vector<T> download(const Buffer& buffer, std::size_t count, cuda::Stream stream) {
  std::vector<T> values(count);
  cuda::copy_bytes(values.data(), buffer.data(), count * sizeof(T), stream);
  cuda::synchronize(stream);
  return values;
}

double mean_of(const std::vector<double>& diagonal) {
  return std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(diagonal.size());
}
/// What a moment is multiplied by, so that the mean of its diagonal is 1.
double unit_of(const std::vector<double>& diagonal) {
  const double mean = mean_of(diagonal);
  return mean > 0.0 && std::isfinite(mean) ? 1.0 / mean : 1.0;
}

}  // namespace

std::string_view device_factor_by() { return cuda::has_solver() ? "cuSOLVER" : "Eigen on the CPU, since cuSOLVER is not installed"; }

DeviceHessian::DeviceHessian(std::int64_t k, Device device, cuda::Stream stream)
    : k_(k), device_(device), stream_(stream), moment_(Buffer::allocate(size_of(k * k) * sizeof(double), device)) {
  cuda::set_bytes(moment_.data(), 0, moment_.size(), stream);
}

DeviceHessian::DeviceHessian(std::span<const double> second_moment, std::int64_t k, Device device, cuda::Stream stream)
    : k_(k), device_(device), stream_(stream), moment_(upload(second_moment, device, stream)) {}

void DeviceHessian::add(const Tensor& x) {
  const cuda::DeviceGuard guard(device_.index);
  check(cuda::launch_add_moment(x.as<float>(), narrowed(x.size() / k_), narrowed(k_), moment_.as<double>(), stream_), "add_moment");
}

Buffer DeviceHessian::device_diagonal() const {
  const cuda::DeviceGuard guard(device_.index);
  Buffer diagonal = Buffer::allocate(size_of(k_) * sizeof(double), device_);
  check(cuda::launch_diagonal(moment_.as<double>(), k_, diagonal.as<double>(), stream_), "diagonal");
  return diagonal;
}

std::vector<double> DeviceHessian::diagonal() const { return download<double>(device_diagonal(), size_of(k_), stream_); }

Buffer DeviceHessian::damped(double damping) const {
  const cuda::DeviceGuard guard(device_.index);
  Buffer h = Buffer::allocate(size_of(k_ * k_) * sizeof(float), device_);
  check(cuda::launch_damped(moment_.as<double>(), k_, unit_of(diagonal()), damping, h.as<float>(), stream_), "damped");
  return h;
}

std::optional<DeviceFactor> DeviceHessian::factor(double damping, bool act_order) const {
  if (!cuda::has_solver()) return factor_on_host(damping, act_order);
  const cuda::DeviceGuard guard(device_.index);
  const std::vector<double> energies = diagonal();
  if (!std::isfinite(mean_of(energies))) return std::nullopt;
  std::vector<std::int32_t> order(size_of(k_));
  std::iota(order.begin(), order.end(), 0);
  if (act_order)
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return energies[static_cast<std::size_t>(a)] > energies[static_cast<std::size_t>(b)];
    });
  DeviceFactor result{upload<std::int32_t>(order, device_, stream_), Buffer::allocate(size_of(k_ * k_) * sizeof(float), device_)};
  result.in_order = std::is_sorted(order.begin(), order.end());
  const Buffer backwards = Buffer::allocate(moment_.size(), device_), bad = Buffer::allocate(sizeof(std::int32_t), device_);
  constexpr double kSmallest = 1e-6, kLargest = 1.0;
  for (double share = damping;; share = std::max(10.0 * share, kSmallest)) {
    check(cuda::launch_backwards(moment_.as<double>(), k_, result.order.as<std::int32_t>(), unit_of(energies), share,
                                 backwards.as<double>(), stream_),
          "backwards");
    result.damping = share;
    if (cuda::invert_factor(backwards.as<double>(), k_, device_, stream_)) {
      cuda::set_bytes(bad.data(), 0, bad.size(), stream_);
      check(cuda::launch_take_upper(backwards.as<double>(), k_, result.upper.as<float>(), bad.as<std::int32_t>(), stream_), "take_upper");
      if (download<std::int32_t>(bad, 1, stream_)[0] == 0) return result;
    }
    if (share >= kLargest) return std::nullopt;
  }
}

std::optional<DeviceFactor> DeviceHessian::factor_on_host(double damping, bool act_order) const {
  std::vector<double> moment = download<double>(moment_, size_of(k_ * k_), stream_);
  for (std::int64_t i = 0; i < k_; ++i)
    for (std::int64_t j = 0; j < i; ++j) moment[size_of(i * k_ + j)] = moment[size_of(j * k_ + i)];
  const std::optional<HessianFactor> made = Hessian(moment, k_).factor(damping, act_order);
  if (!made) return std::nullopt;
  const std::vector<std::int32_t> order(made->order.begin(), made->order.end());
  return DeviceFactor{upload<std::int32_t>(order, device_, stream_), upload<float>(made->upper, device_, stream_), made->damping,
                      std::is_sorted(order.begin(), order.end())};
}

double DeviceHessian::energy(const Tensor& e) const {
  const cuda::DeviceGuard guard(device_.index);
  const std::int64_t count = cuda::energy_parts(narrowed(k_));
  const Buffer parts = Buffer::allocate(size_of(count) * sizeof(double), device_);
  check(cuda::launch_energy(e.as<float>(), narrowed(e.shape()[0]), narrowed(k_), moment_.as<double>(), parts.as<double>(), stream_),
        "energy");
  const std::vector<double> sums = download<double>(parts, size_of(count), stream_);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace narrow
