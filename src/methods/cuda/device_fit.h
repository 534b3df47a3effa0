#pragma once
/// GPTQ of one weight on a CUDA device: methods/gptq.h over there, scales made from the weight beforehand.

#include "methods/cuda/device_hessian.h"
#include "narrow/methods.h"

namespace narrow {

/// Throws Unsupported naming the steps of a method that a device does not take.
void check_device_method(const Method& method);
/// The same of a whole run, and whether there is such a device.
void check_device_run(const Method& method, const MethodRun& run);

/// What is known of an input on the device, and made once for all weights that share it.
struct DeviceInput {
  DeviceInput(DeviceHessian moment, const Method& method);
  DeviceHessian hessian;
  std::optional<DeviceFactor> factor;  ///< none: it could not be made
  std::int64_t dead_columns = 0;
};

/// w [n, k] on the host, of any floating type. Codes and scales are those of quantize_columns with the same factor, but for the rounding of
/// the sums that reach a column from other blocks. Waits.
FittedWeight fit_on_device(const Tensor& w, const Scheme& scheme, const DeviceInput& input);

}  // namespace narrow
