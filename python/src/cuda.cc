/// The CUDA side. Memory belongs to the caller's framework, streams are its current ones (as integers), nothing waits.

#include "narrow/cuda.h"

#include "cuda_layer.h"
#include "narrow/error.h"

namespace narrow::python {

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

}  // namespace

void bind_cuda(nb::module_& module) {
  module.def("cuda_device_count", [] { return cuda::device_count(); });
  bind_quantizers(module);
  bind_cuda_layer(module);
}

}  // namespace narrow::python
