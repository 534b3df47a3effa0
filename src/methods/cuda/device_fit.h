#pragma once
/// One weight on a CUDA device: GPTQ, clip search and learned rounding, methods/{gptq,clip_search,refine}.h over there.

#include "methods/cuda/device_hessian.h"
#include "narrow/methods.h"

namespace narrow {

/// Throws Unsupported naming the steps of a method that a device does not take.
void check_device_method(const Method& method);
/// The same of a whole run, and whether there is such a device.
void check_device_run(const Method& method, const MethodRun& run);

/// What is known of an input on the device, and made once for all weights that share it.
struct DeviceInput {
  DeviceInput(DeviceHessian moment, const Method& wanted);
  DeviceHessian hessian;
  Method method;
  std::optional<DeviceFactor> factor{};  ///< none: it could not be made, or is not wanted
  Buffer damped{};                       ///< of refine: X^T X + damping * mean(diag) I in fp32, in units of the mean diagonal
  std::int64_t dead_columns = 0;
};

/// w [n, k] on the host, of any floating type, by the input's method. Codes and scales are those of quantize_columns with the same factor,
/// but for the rounding of the sums that reach a column from other blocks, and of refine but for that of its gradient. Waits.
FittedWeight fit_on_device(const Tensor& w, const Scheme& scheme, const DeviceInput& input);

}  // namespace narrow
