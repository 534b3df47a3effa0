#pragma once
/// Activations in config.json: quantization_config.activations = {"scheme", "rules", "scales"}.

#include "io/json.h"
#include "narrow/recipe.h"

namespace narrow {

io::OrderedJson activations_json(const ActivationRecipe& recipe);

}  // namespace narrow
