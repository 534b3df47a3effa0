/// The CUDA side. Memory belongs to the caller's framework, streams are its current ones (as integers), nothing waits.

#include "narrow/cuda.h"

#include "narrow/cuda_matmul.h"
#include "narrow/cuda_training.h"
#include "narrow/error.h"
#include "operations.h"

namespace narrow::python {
namespace {

cuda::Stream stream_of(std::uintptr_t stream) { return reinterpret_cast<cuda::Stream>(stream); }

/// A quantized tensor over device arrays; the outer scale, of schemes that have one, is a device array too.
cuda::DeviceQuantized over_device(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                                  const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale) {
  const auto buffer = [](const std::optional<Array>& array) { return array ? array->buffer() : Buffer(); };
  const std::size_t rows = static_cast<std::size_t>(as_matrices(shape).total_rows()),
                    cells = static_cast<std::size_t>(scale_grid(scheme, shape).count());
  const cuda::DeviceQuantized q{scheme, std::move(shape), codes.buffer(), buffer(scales), buffer(zero_points), buffer(outer_scale)};
  const bool fits = q.codes.size() == rows * packed_row_bytes(scheme, as_matrices(q.shape).cols) &&
                    q.scales.size() == cells * (scheme.scale.bits / 8u) && q.zero_points.size() == (scheme.asymmetric ? cells : 0) &&
                    q.outer_scale.size() == (scheme.has_outer_scale ? sizeof(float) : 0);
  if (!fits)
    throw InvalidArgument("codes, scales, zero points or outer scale do not have the sizes of " + scheme.to_string() + " over " +
                          to_string(q.shape));
  return q;
}

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

/// One operand of an fp8 product as products read it.
cuda::Fp8Matrix fp8_operand(const Scheme& scheme, const Array& codes, const Array& scales, cuda::Stream stream) {
  const Tensor& c = codes.tensor;
  return cuda::prepare_fp8(over_device(scheme, c.shape(), codes, scales, {}, {}), stream);
}

}  // namespace

void bind_cuda(nb::module_& module) {
  module.def("cuda_device_count", [] { return cuda::device_count(); });
  bind_quantizers(module);
  module.def(
      "cuda_fp8_matmul",
      [](const Scheme& x_scheme, const Array& x, const Array& x_scales, const Scheme& w_scheme, const Array& w, const Array& w_scales,
         const Array& y, const std::optional<Array>& bias, std::uintptr_t stream) {
        cuda::Fp8MatmulOptions options;
        options.bias = tensor_of(bias);
        cuda::matmul(fp8_operand(x_scheme, x, x_scales, stream_of(stream)), fp8_operand(w_scheme, w, w_scales, stream_of(stream)), y.tensor,
                     stream_of(stream), options);
      },
      nb::arg("x_scheme"), nb::arg("x"), nb::arg("x_scales"), nb::arg("w_scheme"), nb::arg("w"), nb::arg("w_scales"), nb::arg("y"),
      nb::arg("bias").none(), nb::arg("stream"), Unlocked());
}

}  // namespace narrow::python
