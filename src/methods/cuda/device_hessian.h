#pragma once
/// A layer's second moment on a CUDA device, and the factor that GPTQ needs of it: methods/hessian.h over there.

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"

namespace narrow {

/// HessianFactor on a device.
struct DeviceFactor {
  Buffer order;  ///< int32 [k]: column c of the factor is column order[c] of the weight
  Buffer upper;  ///< U, fp32 [k, k]
  double damping = 0.0;
  bool in_order = true;  ///< the weight's own
};

/// Who factors Hessians on a device.
std::string_view device_factor_by();

class DeviceHessian {
 public:
  /// Of k channels, zero.
  DeviceHessian(std::int64_t k, Device device, cuda::Stream stream);
  /// Of a second moment [k, k] on the host.
  DeviceHessian(std::span<const double> second_moment, std::int64_t k, Device device, cuda::Stream stream);

  std::int64_t channels() const { return k_; }
  Device device() const { return device_; }
  cuda::Stream stream() const { return stream_; }
  /// Adds x^T x of contiguous fp32 rows [tokens, k] on the device: products summed in fp32 over 1024 tokens, in fp64 from there on.
  void add(const Tensor& x);

  /// The k numbers of the diagonal, fp64 on the device.
  Buffer device_diagonal() const;
  // These wait for the stream.
  std::vector<double> diagonal() const;
  /// As Hessian::damped, fp32 [k, k] on the device.
  Buffer damped(double damping) const;
  /// As Hessian::factor: nothing where it cannot be factored even with a damping of 1. By cuSOLVER where that is installed.
  std::optional<DeviceFactor> factor(double damping, bool act_order) const;
  /// The same by Hessian itself, on the CPU.
  std::optional<DeviceFactor> factor_on_host(double damping, bool act_order) const;
  /// tr(E X^T X E^T) of an fp32 [n, k] on the device.
  double energy(const Tensor& e) const;

 private:
  std::int64_t k_;
  Device device_;
  cuda::Stream stream_;
  Buffer moment_;  ///< fp64 [k, k], on and above the diagonal
};

}  // namespace narrow
