/// Binary layers on a CUDA device: weights prepared once, inputs of one bit and one scale.

#include "narrow/cuda_binary.h"

#include "cuda_layer.h"

namespace narrow::python {
namespace {

Scheme input_scheme() { return Scheme::parse("int1:tensor"); }

/// The product with an int1 weight [n, k].
class CudaBinaryLinear {
 public:
  CudaBinaryLinear(const cuda::DeviceQuantized& weight, cuda::Stream stream) : weight_(cuda::prepare_int1(weight, stream)) {}

  /// codes, scale: of an input [m, k] in int1:tensor; y [m, n].
  void run(const Array& codes, const Array& scale, const std::optional<Array>& bias, const Array& y, cuda::Stream stream) const {
    const cuda::DeviceQuantized x = over_device(input_scheme(), {y.tensor.shape().at(0), weight_.k}, codes, scale, {}, {});
    cuda::Int1MatmulOptions options;
    options.bias = tensor_of(bias);
    cuda::matmul(cuda::prepare_int1(x, stream), weight_, y.tensor, stream, options);
  }

 private:
  cuda::Int1Matrix weight_;
};

/// The convolution with int1 weights.
class CudaBinaryConv2d {
 public:
  CudaBinaryConv2d(const cuda::DeviceQuantized& weight, const BinaryConv2dOptions& options, cuda::Stream stream)
      : weight_(cuda::prepare_binary_conv2d(weight, options, stream)) {}

  Shape shape(const Shape& x) const { return cuda::binary_conv2d_shape(x, weight_); }

  /// codes, scale: of images [images, height, width, channels] in int1:tensor; y of shape(images).
  void run(const Shape& images, const Array& codes, const Array& scale, const Array& y, cuda::Stream stream) const {
    cuda::binary_conv2d(over_device(input_scheme(), images, codes, scale, {}, {}), weight_, y.tensor, stream);
  }

 private:
  cuda::DeviceBinaryConv2d weight_;
};

using Pair = std::pair<std::int64_t, std::int64_t>;

}  // namespace

void bind_cuda_binary(nb::module_& module) {
  nb::class_<CudaBinaryLinear>(module, "CudaBinaryLinear", "An int1 weight on a CUDA device, prepared for its product.")
      .def(
          "__init__",
          [](CudaBinaryLinear* self, const Scheme& scheme, Shape shape, const Array& codes, const Array& scales, std::uintptr_t stream) {
            new (self) CudaBinaryLinear(over_device(scheme, std::move(shape), codes, scales, {}, {}), stream_of(stream));
          },
          nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales"), nb::arg("stream"), Unlocked())
      .def(
          "run",
          [](const CudaBinaryLinear& self, const Array& codes, const Array& scale, const std::optional<Array>& bias, const Array& y,
             std::uintptr_t stream) { self.run(codes, scale, bias, y, stream_of(stream)); },
          nb::arg("codes"), nb::arg("scale"), nb::arg("bias").none(), nb::arg("y"), nb::arg("stream"), Unlocked());
  nb::class_<CudaBinaryConv2d>(module, "CudaBinaryConv2d", "Weights of a binary convolution on a CUDA device.")
      .def(
          "__init__",
          [](CudaBinaryConv2d* self, const Scheme& scheme, Shape shape, const Array& codes, const Array& scales, Pair kernel, Pair stride,
             Pair padding, std::int64_t groups, std::uintptr_t stream) {
            const BinaryConv2dOptions options{kernel.first,  kernel.second,  stride.first, stride.second,
                                              padding.first, padding.second, groups};
            new (self) CudaBinaryConv2d(over_device(scheme, std::move(shape), codes, scales, {}, {}), options, stream_of(stream));
          },
          nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales"), nb::arg("kernel"), nb::arg("stride"),
          nb::arg("padding"), nb::arg("groups"), nb::arg("stream"), Unlocked())
      .def("shape", &CudaBinaryConv2d::shape, nb::arg("images"))
      .def(
          "run",
          [](const CudaBinaryConv2d& self, const Shape& images, const Array& codes, const Array& scale, const Array& y,
             std::uintptr_t stream) { self.run(images, codes, scale, y, stream_of(stream)); },
          nb::arg("images"), nb::arg("codes"), nb::arg("scale"), nb::arg("y"), nb::arg("stream"), Unlocked());
}

}  // namespace narrow::python
