#pragma once
/// Activations in config.json: quantization_config.activations = {"scheme", "rules", "scales"}.

#include "io/json.h"
#include "narrow/recipe.h"

namespace narrow {

io::OrderedJson activations_json(const ActivationRecipe& recipe);
/// The reverse. Throws InvalidArgument, or nlohmann's exception where a field is missing or has another type.
ActivationRecipe parse_activations(const io::Json& json);

}  // namespace narrow
