#pragma once
/// Quantized tensors over device arrays, which every CUDA binding takes.

#include "narrow/cuda.h"
#include "operations.h"

namespace narrow::python {

inline cuda::Stream stream_of(std::uintptr_t stream) { return reinterpret_cast<cuda::Stream>(stream); }

/// Codes and their scales on a device; the outer scale, of schemes that have one, is a device array too. Throws InvalidArgument where sizes
/// do not fit the scheme.
cuda::DeviceQuantized over_device(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                                  const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale);

void bind_cuda_layer(nb::module_& module);
void bind_cuda_binary(nb::module_& module);

}  // namespace narrow::python
