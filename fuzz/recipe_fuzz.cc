// A recipe from any text: one that decides about a tensor, or InvalidArgument naming the line.
#include "as_file.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static narrow::fuzz::AsFile file;
  try {
    const narrow::Recipe recipe = narrow::Recipe::load_yaml(file.with(data, size));
    narrow::RecipeMatcher(recipe).decide("model.layers.0.mlp.up_proj.weight", narrow::DType::kBf16, {64, 64});
  } catch (const narrow::InvalidArgument&) {
  } catch (const narrow::CorruptFile&) {  // too large
  }
  return 0;
}
