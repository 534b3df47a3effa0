#include "model/linear.h"

#include <fmt/format.h>

#include "model/cuda/device_linear.h"
#include "narrow/error.h"
#include "ops/matmul.h"

namespace narrow::model {
namespace {

/// bf16 as a scheme: its codes are the rounded values.
constexpr Scheme kBf16Cast{.element = kBf16, .granularity = Granularity::none()};

QuantizeOptions saturating() {
  QuantizeOptions options;
  options.nonfinite = NonFinite::kSaturate;
  return options;
}

bool same_rounding(const InputRounding& a, const InputRounding& b) {
  return a.activation == b.activation && a.scale.scale == b.scale.scale && a.scale.zero_point == b.scale.zero_point;
}

/// Whether the product of codes has a fast kernel: otherwise fp32 products of the exact values are as right, and faster.
bool has_fast_product(const Linear& linear, const Scheme& activation) {
  MatmulOptions options;
  options.quantize = ActivationQuantization{.scheme = activation};
  for (const MatmulChoice& choice : explain_matmul(64, linear.weight.n, linear.weight.k, linear.weight.scheme, options))
    if (choice.chosen) return choice.isa != "scalar";
  return false;
}

}  // namespace

void set_rounding(Linear& linear, const ActivationRecipe& recipe, bool keeps_fp32) {
  const std::optional<ActivationScheme> activation = recipe.scheme_of(linear.module);
  if (!activation) return;
  InputRounding rounding{*activation, saturating(), {}};
  if (activation->is_static) {
    const auto found = recipe.scales.find(linear.module);
    if (found == recipe.scales.end())
      throw InvalidArgument(fmt::format("the input of {} is {}, but no calibration gives its scale; run narrow calibrate and pass its file",
                                        linear.module, activation->to_string()));
    rounding.scale = found->second;
    if (activation->scheme.has_outer_scale) {
      rounding.options.outer_scale = rounding.scale.scale;
    } else {
      rounding.options.scales = Tensor::of({rounding.scale.scale}, {1});
      if (activation->scheme.asymmetric) {
        rounding.options.zero_points = Tensor::empty(DType::kU8, {1});
        *rounding.options.zero_points->as<std::uint8_t>() = rounding.scale.zero_point;
      }
    }
  }
  linear.multiplies_codes = !activation->scheme.has_outer_scale && has_fast_product(linear, activation->scheme);
  // Integer codes that a device multiplies as well have the same bits there.
  const bool exact = linear.multiplies_codes && activation->scheme.element == kInt8 &&
                     multiplies_codes(linear.weight.scheme, *activation, linear.weight.n, linear.weight.k);
  linear.in_fp64 = keeps_fp32 && !exact;
  linear.rounding = std::move(rounding);
}

const QuantizedTensor& LinearInput::rounded(const InputRounding& rounding) {
  if (last_ && same_rounding(*last_, rounding)) return codes_;
  codes_ = quantize(x_, rounding.activation.scheme, rounding.options);
  last_ = rounding;
  values_.reset();
  return codes_;
}

Tensor LinearInput::through(const Linear& linear, const std::optional<Tensor>& residual) {
  MatmulOptions options;
  options.bias = linear.bias;
  options.residual = residual;
  if (linear.rounds_to_bf16) {
    if (!bf16_) bf16_ = Tensor::over(quantize(x_, kBf16Cast, saturating()).codes, DType::kBf16, x_.shape());
    return matmul(*bf16_, linear.weight, options);
  }
  if (!linear.rounding) return matmul(x_, linear.weight, options);
  const QuantizedTensor& codes = rounded(*linear.rounding);
  if (linear.multiplies_codes && !linear.in_fp64) return matmul(codes, linear.weight, options);
  if (!values_) values_ = dequantize(codes);
  return linear.in_fp64 ? matmul_in_fp64(*values_, linear.weight, options) : matmul(*values_, linear.weight, options);
}

}  // namespace narrow::model
