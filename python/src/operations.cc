/// quantize, dequantize and what is made of them, into memory that the caller's framework allocated.

#include "operations.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::python {
namespace {

NonFinite parse_nonfinite(std::string_view text) {
  if (text == "error") return NonFinite::kError;
  if (text == "saturate") return NonFinite::kSaturate;
  throw InvalidArgument(fmt::format("nonfinite '{}' is not known; use error or saturate", text));
}

/// The arguments of a quantization beside the tensor and the scheme.
QuantizeOptions make_options(std::string_view rounding, std::string_view overflow, std::string_view nonfinite, std::uint64_t seed,
                             const std::optional<Array>& scales, const std::optional<Array>& zero_points,
                             std::optional<float> outer_scale) {
  QuantizeOptions options;
  options.rounding = parse_rounding(rounding);
  options.overflow = parse_overflow(overflow);
  options.nonfinite = parse_nonfinite(nonfinite);
  options.seed = seed;
  options.scales = tensor_of(scales);
  options.zero_points = tensor_of(zero_points);
  options.outer_scale = outer_scale;
  return options;
}

nb::dict as_dict(const ErrorMetrics& error) {
  nb::dict fields;
  fields["max_absolute"] = error.max_absolute;
  fields["mean_absolute"] = error.mean_absolute;
  fields["rms"] = error.rms;
  fields["sqnr_db"] = error.sqnr_db;
  fields["cosine"] = error.cosine;
  fields["count"] = error.count;
  return fields;
}

float quantize_arrays(const Array& x, const Scheme& scheme, const Array& codes, const std::optional<Array>& scales,
                      const std::optional<Array>& zero_points, std::string_view rounding, std::string_view overflow,
                      std::string_view nonfinite, std::uint64_t seed, const std::optional<Array>& given_scales,
                      const std::optional<Array>& given_zero_points, std::optional<float> given_outer_scale) {
  QuantizedTensor q = over_arrays(scheme, x.tensor.shape(), codes, scales, zero_points, 1.0f);
  quantize_into(x.tensor, q, make_options(rounding, overflow, nonfinite, seed, given_scales, given_zero_points, given_outer_scale));
  return q.outer_scale;
}

void fake_quantize_arrays(const Array& x, const Scheme& scheme, const Array& y, std::string_view rounding, std::string_view overflow,
                          std::string_view nonfinite, std::uint64_t seed, const std::optional<Array>& given_scales,
                          const std::optional<Array>& given_zero_points, std::optional<float> given_outer_scale) {
  const QuantizedTensor q =
      quantize(x.tensor, scheme, make_options(rounding, overflow, nonfinite, seed, given_scales, given_zero_points, given_outer_scale));
  Tensor into = y.tensor;
  dequantize_into(q, into);
}

}  // namespace

Rounding parse_rounding(std::string_view text) {
  if (text == "nearest_even") return Rounding::kNearestEven;
  if (text == "toward_zero") return Rounding::kTowardZero;
  if (text == "stochastic") return Rounding::kStochastic;
  throw InvalidArgument(fmt::format("rounding '{}' is not known; use nearest_even, toward_zero or stochastic", text));
}

Overflow parse_overflow(std::string_view text) {
  if (text == "saturate") return Overflow::kSaturate;
  if (text == "ieee") return Overflow::kIeee;
  throw InvalidArgument(fmt::format("overflow '{}' is not known; use saturate or ieee", text));
}

QuantizedTensor over_arrays(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                            const std::optional<Array>& zero_points, float outer_scale) {
  for (const Array* part : {&codes, scales ? &*scales : nullptr, zero_points ? &*zero_points : nullptr})
    if (part != nullptr && !part->tensor.is_contiguous()) throw InvalidArgument("codes, scales and zero points must be contiguous");
  return assemble(scheme, std::move(shape), codes.buffer(), scales ? scales->buffer() : Buffer(),
                  zero_points ? zero_points->buffer() : Buffer(), outer_scale);
}

void bind_operations(nb::module_& module) {
  nb::class_<QuantizedTensor>(module, "Quantized", "A quantized tensor over arrays that stay where they are.")
      .def(
          "__init__",
          [](QuantizedTensor* self, const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
             const std::optional<Array>& zero_points, float outer_scale) {
            new (self) QuantizedTensor(over_arrays(scheme, std::move(shape), codes, scales, zero_points, outer_scale));
          },
          nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales").none(), nb::arg("zero_points").none(),
          nb::arg("outer_scale"))
      .def(
          "clipped_share", [](const QuantizedTensor& self, const Array& x) { return clipped_share(x.tensor, self); }, Unlocked());

  module.def("quantize_into", &quantize_arrays, nb::arg("x"), nb::arg("scheme"), nb::arg("codes"), nb::arg("scales").none(),
             nb::arg("zero_points").none(), nb::arg("rounding") = "nearest_even", nb::arg("overflow") = "saturate",
             nb::arg("nonfinite") = "error", nb::arg("seed") = 0, nb::arg("given_scales") = nb::none(),
             nb::arg("given_zero_points") = nb::none(), nb::arg("given_outer_scale") = nb::none(), Unlocked());
  module.def(
      "dequantize_into",
      [](const QuantizedTensor& q, const Array& y) {
        Tensor into = y.tensor;
        dequantize_into(q, into);
      },
      nb::arg("q"), nb::arg("y"), Unlocked());
  module.def("fake_quantize_into", &fake_quantize_arrays, nb::arg("x"), nb::arg("scheme"), nb::arg("y"),
             nb::arg("rounding") = "nearest_even", nb::arg("overflow") = "saturate", nb::arg("nonfinite") = "error", nb::arg("seed") = 0,
             nb::arg("given_scales") = nb::none(), nb::arg("given_zero_points") = nb::none(), nb::arg("given_outer_scale") = nb::none(),
             Unlocked());
  module.def("compare", [](const Array& x, const Array& y) {
    ErrorMetrics error;
    {
      const nb::gil_scoped_release unlocked;
      error = compare(x.tensor, y.tensor);
    }
    return as_dict(error);
  });
}

}  // namespace narrow::python
