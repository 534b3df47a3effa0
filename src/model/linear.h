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
};

/// Sets the rounding; throws InvalidArgument where a static one has no scale.
void set_rounding(Linear& linear, const ActivationRecipe& recipe);

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
