#pragma once
/// What a report says of NaN, infinities, subnormals, constants and zeros in the sources of weights.

#include <string>
#include <vector>

#include "commands.h"
#include "narrow/recipe.h"
#include "report/json.h"

namespace narrow::command {

/// Fields of a tensor's object: nan, infinite, subnormal, constant, zero.
report::Json special_object(const SpecialValues& values);
report::Json kept_objects(const std::vector<KeptTensor>& tensors);

/// A line for a tensor whose source has NaN, infinities, or zeros alone; none for others.
void print_special(Context& context, const std::string& name, const SpecialValues& values);
void print_kept(Context& context, const KeptTensor& tensor);

}  // namespace narrow::command
