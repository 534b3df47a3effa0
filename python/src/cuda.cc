/// The CUDA side. Memory belongs to the caller's framework, streams are its current ones (as integers), nothing waits.

#include "narrow/cuda.h"

#include "cuda_layer.h"
#include "narrow/cuda_msfp.h"
#include "narrow/error.h"

namespace narrow::python {

namespace {

/// Bytes of the parts of a quantized tensor.
struct PartSizes {
  std::size_t codes, scales, zero_points, outer_scale;

  PartSizes(const Scheme& scheme, const Shape& shape) {
    const MatrixShape matrix = as_matrices(shape);
    const std::size_t cells = static_cast<std::size_t>(scale_grid(scheme, shape).count());
    codes = static_cast<std::size_t>(matrix.total_rows()) * packed_row_bytes(scheme, matrix.cols);
    scales = cells * (scheme.scale.bits / 8u);
    zero_points = scheme.asymmetric ? cells : 0;
    outer_scale = scheme.has_outer_scale ? sizeof(float) : 0;
  }
};

cuda::DeviceQuantized checked(cuda::DeviceQuantized q) {
  const PartSizes sizes(q.scheme, q.shape);
  if (q.codes.size() != sizes.codes || q.scales.size() != sizes.scales || q.zero_points.size() != sizes.zero_points ||
      q.outer_scale.size() != sizes.outer_scale)
    throw InvalidArgument("codes, scales, zero points or outer scale do not have the sizes of " + q.scheme.to_string() + " over " +
                          to_string(q.shape));
  return q;
}

}  // namespace

cuda::DeviceQuantized over_device(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                                  const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale) {
  const auto buffer = [](const std::optional<Array>& array) { return array ? array->buffer() : Buffer(); };
  return checked({scheme, std::move(shape), codes.buffer(), buffer(scales), buffer(zero_points), buffer(outer_scale)});
}

namespace {

cuda::QuantizeOptions make_options(std::string_view rounding, std::uint64_t seed, const std::optional<Array>& scales,
                                   const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale) {
  cuda::QuantizeOptions options;
  options.rounding = parse_rounding(rounding);
  options.seed = seed;
  options.scales = tensor_of(scales);
  options.zero_points = tensor_of(zero_points);
  options.outer_scale = tensor_of(outer_scale);
  return options;
}

void bind_quantizers(nb::module_& module) {
  module.def(
      "cuda_quantize",
      [](const Array& x, const Scheme& scheme, const Array& codes, const std::optional<Array>& scales,
         const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale, std::uintptr_t stream, std::string_view rounding,
         std::uint64_t seed, const std::optional<Array>& given_scales, const std::optional<Array>& given_zero_points,
         const std::optional<Array>& given_outer_scale) {
        cuda::quantize(x.tensor, over_device(scheme, x.tensor.shape(), codes, scales, zero_points, outer_scale), stream_of(stream),
                       make_options(rounding, seed, given_scales, given_zero_points, given_outer_scale));
      },
      nb::arg("x"), nb::arg("scheme"), nb::arg("codes"), nb::arg("scales").none(), nb::arg("zero_points").none(),
      nb::arg("outer_scale").none(), nb::arg("stream"), nb::arg("rounding") = "nearest_even", nb::arg("seed") = 0,
      nb::arg("given_scales") = nb::none(), nb::arg("given_zero_points") = nb::none(), nb::arg("given_outer_scale") = nb::none(),
      Unlocked());
  module.def(
      "cuda_dequantize",
      [](const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales, const std::optional<Array>& zero_points,
         const std::optional<Array>& outer_scale, const Array& y, std::uintptr_t stream) {
        cuda::dequantize(over_device(scheme, std::move(shape), codes, scales, zero_points, outer_scale), y.tensor, stream_of(stream));
      },
      nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales").none(), nb::arg("zero_points").none(),
      nb::arg("outer_scale").none(), nb::arg("y"), nb::arg("stream"), Unlocked());
  module.def(
      "cuda_fake_quantize",
      [](const Array& x, const Array& y, const Scheme& scheme, std::uintptr_t stream, std::string_view rounding, std::uint64_t seed,
         const std::optional<Array>& given_scales, const std::optional<Array>& given_zero_points) {
        cuda::fake_quantize(x.tensor, y.tensor, scheme, stream_of(stream),
                            make_options(rounding, seed, given_scales, given_zero_points, {}));
      },
      nb::arg("x"), nb::arg("y"), nb::arg("scheme"), nb::arg("stream"), nb::arg("rounding") = "nearest_even", nb::arg("seed") = 0,
      nb::arg("given_scales") = nb::none(), nb::arg("given_zero_points") = nb::none(), Unlocked());
}

/// Address and bytes of contiguous memory that the caller keeps alive: for operators of torch, whose calls an object for each part would
/// make slower by a microsecond each.
using Memory = std::pair<std::uintptr_t, std::size_t>;

void bind_quick_calls(nb::module_& module) {
  module.def(
      "cuda_quantize_at",
      [](const Scheme& scheme, Shape shape, Shape strides, std::uintptr_t x, std::string_view dtype, std::uintptr_t codes,
         std::uintptr_t scales, std::uintptr_t zero_points, std::uintptr_t outer_scale, int device, std::uintptr_t stream,
         std::string_view rounding, std::uint64_t seed) {
        const PartSizes sizes(scheme, shape);
        const auto over = [&](std::uintptr_t part, std::size_t bytes) {
          return bytes == 0 ? Buffer() : Buffer::borrow(reinterpret_cast<void*>(part), bytes, Device::cuda(device));
        };
        const Tensor values =
            Tensor::borrow(reinterpret_cast<void*>(x), parse_dtype(dtype), shape, std::move(strides), Device::cuda(device));
        cuda::quantize(values,
                       {scheme, std::move(shape), over(codes, sizes.codes), over(scales, sizes.scales),
                        over(zero_points, sizes.zero_points), over(outer_scale, sizes.outer_scale)},
                       stream_of(stream), make_options(rounding, seed, {}, {}, {}));
      },
      nb::arg("scheme"), nb::arg("shape"), nb::arg("strides"), nb::arg("x"), nb::arg("dtype"), nb::arg("codes"), nb::arg("scales"),
      nb::arg("zero_points"), nb::arg("outer_scale"), nb::arg("device"), nb::arg("stream"), nb::arg("rounding") = "nearest_even",
      nb::arg("seed") = 0, Unlocked(), "Into parts of the sizes that the scheme gives the shape.");
  module.def(
      "cuda_dequantize_at",
      [](const Scheme& scheme, Shape shape, Memory codes, Memory scales, Memory zero_points, Memory outer_scale, std::uintptr_t y,
         std::string_view dtype, int device, std::uintptr_t stream) {
        const auto over = [&](Memory part) {
          return part.second == 0 ? Buffer() : Buffer::borrow(reinterpret_cast<void*>(part.first), part.second, Device::cuda(device));
        };
        const Tensor values = Tensor::borrow(reinterpret_cast<void*>(y), parse_dtype(dtype), shape, {}, Device::cuda(device));
        cuda::dequantize(checked({scheme, std::move(shape), over(codes), over(scales), over(zero_points), over(outer_scale)}), values,
                         stream_of(stream));
      },
      nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales"), nb::arg("zero_points"), nb::arg("outer_scale"),
      nb::arg("y"), nb::arg("dtype"), nb::arg("device"), nb::arg("stream"), Unlocked());
  module.def(
      "cuda_fake_quantize_at",
      [](std::uintptr_t x, std::uintptr_t y, std::string_view dtype, Shape shape, Shape strides, int device, const Scheme& scheme,
         std::uintptr_t stream, std::string_view rounding, std::uint64_t seed) {
        const DType type = parse_dtype(dtype);
        const Tensor result = Tensor::borrow(reinterpret_cast<void*>(y), type, shape, {}, Device::cuda(device));
        cuda::fake_quantize(Tensor::borrow(reinterpret_cast<void*>(x), type, std::move(shape), std::move(strides), Device::cuda(device)),
                            result, scheme, stream_of(stream), make_options(rounding, seed, {}, {}, {}));
      },
      nb::arg("x"), nb::arg("y"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"), nb::arg("device"), nb::arg("scheme"),
      nb::arg("stream"), nb::arg("rounding"), nb::arg("seed"), Unlocked());
}

}  // namespace

void bind_cuda(nb::module_& module) {
  module.def("cuda_device_count", [] { return cuda::device_count(); });
  module.def(
      "cuda_synchronize", [](std::uintptr_t stream) { cuda::synchronize(stream_of(stream)); }, nb::arg("stream"), Unlocked());
  bind_quantizers(module);
  bind_quick_calls(module);
  bind_cuda_layer(module);
  bind_torch_layer(module);
  bind_cuda_binary(module);
  module.def(
      "cuda_msfp_matmul",
      [](const Scheme& x_scheme, Shape x_shape, const Array& x, const Array& x_scales, const Scheme& w_scheme, Shape w_shape,
         const Array& w, const Array& w_scales, const Array& y, std::uintptr_t stream) {
        const auto operand = [&](const Scheme& scheme, Shape& shape, const Array& codes, const Array& scales) {
          return cuda::prepare_msfp(over_device(scheme, std::move(shape), codes, scales, {}, {}), stream_of(stream));
        };
        cuda::matmul(operand(x_scheme, x_shape, x, x_scales), operand(w_scheme, w_shape, w, w_scales), y.tensor, stream_of(stream));
      },
      nb::arg("x_scheme"), nb::arg("x_shape"), nb::arg("x"), nb::arg("x_scales"), nb::arg("w_scheme"), nb::arg("w_shape"), nb::arg("w"),
      nb::arg("w_scales"), nb::arg("y"), nb::arg("stream"), Unlocked());
}

}  // namespace narrow::python
