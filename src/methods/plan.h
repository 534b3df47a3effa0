#pragma once
/// What follows from a plan's fates, and fates that follow from values.

#include "narrow/recipe.h"

namespace narrow {

/// Sizes and memory, from the fates.
void count_bytes(const Checkpoint& input, const Recipe& recipe, Plan& plan);

/// OnNonFinite::kKeep, with one reading of every tensor that would be quantized: those with values that their scheme cannot hold are
/// copied.
std::vector<KeptTensor> keep_nonfinite(const Checkpoint& input, const Recipe& recipe, Plan& plan);

}  // namespace narrow
