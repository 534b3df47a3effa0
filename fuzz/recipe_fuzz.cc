// A recipe from any text, YAML or one line of JSON: one that decides about a tensor, or InvalidArgument.
#include "as_file.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"

namespace {

/// Recipes travel as JSON to the processes of a cluster.
void check_json(const narrow::Recipe& recipe) {
  const std::string text = recipe.to_json();
  try {
    if (narrow::Recipe::from_json(text).to_json() != text) std::abort();
  } catch (const narrow::Error&) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::Recipe recipe = narrow::Recipe::load_yaml(narrow::fuzz::as_file(data, size));
    check_json(recipe);
    narrow::RecipeMatcher(recipe).decide("model.layers.0.mlp.up_proj.weight", narrow::DType::kBf16, {64, 64});
  } catch (const narrow::InvalidArgument&) {
  } catch (const narrow::CorruptFile&) {  // too large
  }
  if (size == 0 || data[0] != '{') return 0;
  try {
    check_json(narrow::Recipe::from_json({reinterpret_cast<const char*>(data), size}));
  } catch (const narrow::InvalidArgument&) {
  }
  return 0;
}
