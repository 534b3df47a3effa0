#pragma once
/// Counting the values that scales must be careful with, and what a recipe's policy makes of tensors that hold them.

#include <optional>

#include "narrow/recipe.h"

namespace narrow {

/// Adds up runs of a tensor (fp32, fp16 or bf16, contiguous), in order.
class SpecialValueCounter {
 public:
  void add(const Tensor& rows);
  SpecialValues values() const;

 private:
  SpecialValues counts_;
  std::int64_t elements_ = 0, zeros_ = 0;
  std::optional<std::uint32_t> first_;  ///< the first element's bits
  bool is_constant_ = true;
};

/// How a recipe's policy quantizes one tensor: kNearest saturates.
QuantizeOptions options_of(const Recipe& recipe);

/// The tensor's special values where the policy is to keep it: it has NaN or infinities that `scheme` cannot hold.
std::optional<SpecialValues> reason_to_keep(const Checkpoint& input, const TensorInfo& info, const Scheme& scheme, const Recipe& recipe);

/// Elements of x that are not finite have no distance to y: in both they become zeros, so that errors are those of the finite values.
void leave_out_nonfinite(const Tensor& x, const Tensor& y);

/// "3 NaN and 1 infinity".
std::string nonfinite_text(const SpecialValues& values);

}  // namespace narrow
