#pragma once
/// A recipe's patterns, compiled once and asked for every tensor.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/checkpoint.h"
#include "narrow/recipe.h"

namespace narrow {

/// Whether a tensor is the weight of a Linear layer, by its name and shape.
bool is_linear_weight(std::string_view name, const Shape& shape);

class RecipeMatcher {
 public:
  /// Throws InvalidArgument for a pattern that is not a regular expression, or longer than 512 characters.
  explicit RecipeMatcher(const Recipe& recipe);
  /// For the tensors of one model: the matrices of GPT-2 and its like lie [inputs, outputs], which no Linear layer's do.
  RecipeMatcher(const Recipe& recipe, const Checkpoint& model);
  ~RecipeMatcher();

  struct Decision {
    Fate fate = Fate::kCopy;
    Scheme scheme{};
    std::string reason;
  };
  Decision decide(std::string_view name, DType dtype, const Shape& shape) const;

 private:
  struct Patterns;
  std::unique_ptr<Patterns> patterns_;
  Scheme scheme_;
  bool has_conv1d_ = false;
};

/// Whether one pattern matches a tensor's or a module's name. Throws InvalidArgument as RecipeMatcher does.
bool pattern_matches(const std::string& pattern, std::string_view name);

}  // namespace narrow
