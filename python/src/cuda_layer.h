#pragma once
/// Quantized tensors over device arrays, which every CUDA binding takes, and layers made of them.

#include <memory>

#include "narrow/cuda.h"
#include "operations.h"

namespace narrow::python {

inline cuda::Stream stream_of(std::uintptr_t stream) { return reinterpret_cast<cuda::Stream>(stream); }

/// Codes and their scales on a device; the outer scale, of schemes that have one, is a device array too. Throws InvalidArgument where sizes
/// do not fit the scheme.
cuda::DeviceQuantized over_device(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                                  const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale);

/// Addresses on a layer's device, for one product; 0 where there is nothing. The caller keeps the memory alive.
struct LayerCall {
  std::uintptr_t x, y;  ///< [m, k], rows `pitch` elements apart, and [m, n], contiguous; both of one type
  DType dtype;
  std::int64_t m, pitch;
  std::uintptr_t scratch;            ///< of inputs that are rounded: scratch(m) bytes
  std::uintptr_t scale, zero_point;  ///< of a static input
};

/// A Linear layer's weight on a CUDA device, prepared once for the kernels that its scheme and the rounding of its input call for. Copying
/// shares its memory.
class CudaLayer {
 public:
  /// bias: fp32 [n]. Throws Unsupported where no kernel takes the layer.
  CudaLayer(const cuda::DeviceQuantized& weight, const std::optional<Scheme>& input, bool is_static, std::optional<Tensor> bias,
            cuda::Stream stream);

  std::int64_t n() const;
  std::int64_t k() const;
  bool rounds_inputs() const;
  /// Bytes of scratch memory for m rows of input.
  std::int64_t scratch(std::int64_t m) const;
  void run(const LayerCall& call, cuda::Stream stream) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

void bind_cuda_layer(nb::module_& module);
void bind_torch_layer(nb::module_& module);
void bind_cuda_binary(nb::module_& module);

}  // namespace narrow::python
