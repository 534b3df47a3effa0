/// Products: prepared weights, and Linear layers that round their input first.

#include <fmt/format.h>

#include "narrow/binary.h"
#include "narrow/error.h"
#include "narrow/matmul.h"
#include "operations.h"

namespace narrow::python {
namespace {

Activation parse_activation(std::string_view text) {
  if (text.empty() || text == "none") return Activation::kNone;
  if (text == "relu") return Activation::kRelu;
  if (text == "gelu") return Activation::kGelu;
  if (text == "silu") return Activation::kSilu;
  throw InvalidArgument(fmt::format("activation '{}' is not known; use none, relu, gelu or silu", text));
}

/// What an input is rounded to before a product; a static one knows its scale.
struct InputRounding {
  Scheme scheme;
  QuantizeOptions options;
};

InputRounding make_rounding(const Scheme& scheme, std::optional<float> scale, std::uint8_t zero_point) {
  InputRounding rounding{scheme, {}};
  rounding.options.nonfinite = NonFinite::kSaturate;
  if (!scale) return rounding;
  if (scheme.has_outer_scale) {
    rounding.options.outer_scale = *scale;
    return rounding;
  }
  rounding.options.scales = Tensor::of({*scale}, {1});
  if (scheme.asymmetric) {
    rounding.options.zero_points = Tensor::empty(DType::kU8, {1});
    *rounding.options.zero_points->as<std::uint8_t>() = zero_point;
  }
  return rounding;
}

/// A weight, and what its input is rounded to. Codes are multiplied where a fast kernel does it; elsewhere fp32 products of the exact
/// values are as right, and faster: the rule of the executor, so that a layer gives its numbers.
class Layer {
 public:
  Layer(PreparedWeight weight, const std::optional<Scheme>& input, std::optional<float> scale, std::uint8_t zero_point)
      : weight_(std::move(weight)) {
    if (!input) return;
    rounding_ = make_rounding(*input, scale, zero_point);
    multiplies_codes_ = !input->has_outer_scale && has_fast_product(*input);
  }

  Array run(const Array& x, const std::optional<Array>& bias, std::string_view out) const {
    MatmulOptions options;
    options.bias = tensor_of(bias);
    options.out = parse_dtype(out);
    if (!rounding_) return {matmul(x.tensor, weight_, options)};
    const QuantizedTensor codes = quantize(x.tensor, rounding_->scheme, rounding_->options);
    if (multiplies_codes_) return {matmul(codes, weight_, options)};
    return {matmul(dequantize(codes), weight_, options)};
  }

  std::size_t byte_size() const { return weight_.byte_size(); }

 private:
  bool has_fast_product(const Scheme& input) const {
    MatmulOptions options;
    options.quantize = ActivationQuantization{.scheme = input};
    for (const MatmulChoice& choice : explain_matmul(64, weight_.n, weight_.k, weight_.scheme, options))
      if (choice.chosen) return choice.isa != "scalar";
    return false;
  }

  PreparedWeight weight_;
  std::optional<InputRounding> rounding_{};
  bool multiplies_codes_ = false;
};

Array run_matmul(const Array& x, const PreparedWeight& w, const std::optional<Array>& bias, std::string_view activation,
                 const std::optional<Array>& residual, std::string_view out, float out_scale, const std::optional<Scheme>& input,
                 const std::optional<Array>& input_scales, const std::optional<Array>& input_zero_points) {
  MatmulOptions options;
  options.bias = tensor_of(bias);
  options.activation = parse_activation(activation);
  options.residual = tensor_of(residual);
  options.out = parse_dtype(out);
  options.out_scale = out_scale;
  if (input) options.quantize = ActivationQuantization{*input, tensor_of(input_scales), tensor_of(input_zero_points)};
  return {matmul(x.tensor, w, options)};
}

Array run_matmul_codes(const QuantizedTensor& x, const PreparedWeight& w, const std::optional<Array>& bias, std::string_view out) {
  MatmulOptions options;
  options.bias = tensor_of(bias);
  options.out = parse_dtype(out);
  return {matmul(x, w, options)};
}

std::vector<std::vector<std::string>> explain(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight,
                                              const std::optional<Scheme>& input) {
  MatmulOptions options;
  if (input) options.quantize = ActivationQuantization{.scheme = *input};
  std::vector<std::vector<std::string>> rows;
  for (const MatmulChoice& choice : explain_matmul(m, n, k, weight, options))
    rows.push_back({choice.name, choice.isa, choice.chosen ? "chosen" : choice.accepted ? "accepted" : "refused", choice.reason});
  return rows;
}

}  // namespace

void bind_products(nb::module_& module) {
  nb::class_<PreparedWeight>(module, "PreparedWeight", "A weight [n, k] in the layout of the kernels that multiply it.")
      .def(
          "__init__", [](PreparedWeight* self, const QuantizedTensor& q) { new (self) PreparedWeight(prepare(q)); }, nb::arg("q"),
          Unlocked())
      .def(
          "__init__", [](PreparedWeight* self, const Array& w) { new (self) PreparedWeight(prepare(w.tensor)); }, nb::arg("w"), Unlocked())
      .def_prop_ro("n", [](const PreparedWeight& self) { return self.n; })
      .def_prop_ro("k", [](const PreparedWeight& self) { return self.k; })
      .def_prop_ro("scheme", [](const PreparedWeight& self) { return self.scheme; })
      .def_prop_ro("byte_size", &PreparedWeight::byte_size);
  module.def("matmul", &run_matmul, nb::arg("x"), nb::arg("w"), nb::arg("bias") = nb::none(), nb::arg("activation") = "none",
             nb::arg("residual") = nb::none(), nb::arg("out") = "F32", nb::arg("out_scale") = 1.0f, nb::arg("input") = nb::none(),
             nb::arg("input_scales") = nb::none(), nb::arg("input_zero_points") = nb::none(), Unlocked());
  module.def("matmul_codes", &run_matmul_codes, nb::arg("x"), nb::arg("w"), nb::arg("bias") = nb::none(), nb::arg("out") = "F32",
             Unlocked());
  module.def("explain_matmul", &explain, nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("weight"), nb::arg("input") = nb::none());

  nb::class_<Layer>(module, "Layer", "A weight and what its input is rounded to.")
      .def(
          "__init__",
          [](Layer* self, const QuantizedTensor& weight, const std::optional<Scheme>& input, std::optional<float> scale,
             std::uint8_t zero_point) { new (self) Layer(prepare(weight), input, scale, zero_point); },
          nb::arg("weight"), nb::arg("input").none(), nb::arg("scale").none(), nb::arg("zero_point"), Unlocked())
      .def_prop_ro("byte_size", &Layer::byte_size)
      .def("run", &Layer::run, nb::arg("x"), nb::arg("bias").none(), nb::arg("out"), Unlocked());

  nb::class_<PreparedBinaryConv2d>(module, "PreparedBinaryConv2d", "Weights of a binary convolution in the layout of its kernels.");
  module.def(
      "prepare_binary_conv2d",
      [](const QuantizedTensor& w, std::pair<std::int64_t, std::int64_t> kernel, std::pair<std::int64_t, std::int64_t> stride,
         std::pair<std::int64_t, std::int64_t> padding, std::int64_t groups) {
        return prepare_binary_conv2d(w, {kernel.first, kernel.second, stride.first, stride.second, padding.first, padding.second, groups});
      },
      nb::arg("w"), nb::arg("kernel"), nb::arg("stride"), nb::arg("padding"), nb::arg("groups"), Unlocked());
  module.def(
      "binary_conv2d",
      [](const QuantizedTensor& x, const PreparedBinaryConv2d& w, std::string_view out) {
        return Array{binary_conv2d(x, w, parse_dtype(out))};
      },
      nb::arg("x"), nb::arg("w"), nb::arg("out") = "F32", Unlocked());
}

}  // namespace narrow::python
