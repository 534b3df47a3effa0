#pragma once
/// Linear layers: a prepared weight, and what happens to its input.

#include <optional>
#include <string>

#include "narrow/matmul.h"
#include "narrow/recipe.h"

namespace narrow::model {

/// How the input is rounded, ready to be used.
struct InputRounding {
  ActivationScheme activation;
  QuantizeOptions options;  ///< static scales
  StaticScale scale;
};

struct Linear {
  std::string module;
  PreparedWeight weight;
  std::optional<Tensor> bias{};  ///< fp32 [n]
  std::optional<InputRounding> rounding{};
  bool rounds_to_bf16 = false;    ///< of dense bf16 weights
  bool multiplies_codes = false;  ///< a fast row of the table takes the rounded input's codes; else its exact fp32 values are multiplied
  /// Products of the rounded input's values are summed in fp64: another last bit may round to another code of the next layer's input, and
  /// then texts do not stay the same on another device. Sums of integer codes are exact as they are.
  bool in_fp64 = false;
};

/// Sets the rounding, and in_fp64 where fp32 is to be kept; throws InvalidArgument where a static one has no scale.
void set_rounding(Linear& linear, const ActivationRecipe& recipe, bool keeps_fp32);

/// The input of several Linear layers; what it is rounded to is kept for the next one that asks for the same.
class LinearInput {
 public:
  explicit LinearInput(Tensor x) : x_(std::move(x)) {}
  const Tensor& values() const { return x_; }
  /// y = input * weight + bias (+ residual).
  Tensor through(const Linear& linear, const std::optional<Tensor>& residual = {});

 private:
  const QuantizedTensor& rounded(const InputRounding& rounding);

  Tensor x_;
  std::optional<InputRounding> last_;
  QuantizedTensor codes_;
  std::optional<Tensor> values_;  ///< of codes_
  std::optional<Tensor> bf16_;
};

}  // namespace narrow::model
