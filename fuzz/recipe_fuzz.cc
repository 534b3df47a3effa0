// A recipe from any text, YAML or one line of JSON: one that decides about tensors, and of which it is told what it would do, or
// InvalidArgument.
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

/// What `narrow quantize` asks of a plan before it begins, for a model of three tensors.
void check_plan(const narrow::Recipe& recipe) {
  const narrow::RecipeMatcher matcher(recipe);
  narrow::Plan plan;
  for (const char* name : {"model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}) {
    const narrow::Shape shape = std::string_view(name) == "model.norm.weight" ? narrow::Shape{64} : narrow::Shape{64, 64};
    const narrow::RecipeMatcher::Decision decision = matcher.decide(name, narrow::DType::kBf16, shape);
    plan.tensors.push_back({name, decision.fate, decision.scheme, decision.reason, narrow::DType::kBf16, shape});
  }
  for (const std::string& sentence : narrow::idle_patterns(plan, recipe))
    if (sentence.empty() || sentence.find('\n') != std::string::npos) std::abort();
  check_calibrated(plan, recipe);
  check_quantizes(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::Recipe recipe = narrow::Recipe::load_yaml(narrow::fuzz::as_file(data, size));
    check_json(recipe);
    check_plan(recipe);
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
