/// The presets: one row each.

#include <algorithm>

#include "narrow/recipe.h"

namespace narrow {
namespace {

/// In capitals, since nvfp4 and mxfp4 are schemes; a hyphen or an underscore.
bool same_name(std::string_view a, std::string_view b) {
  const auto plain = [](char c) { return c == '-' ? '_' : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return plain(x) == plain(y); });
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table{
      {"W8A16", "int8:row", "", "8-bit integers, weights alone"},
      {"W4A16", "int4:block128", "", "4-bit integers in blocks of 128, weights alone"},
      {"W4A16_ASYM", "int4:block128:asym", "", "the same with zero points"},
      {"W8A8", "int8:row", "int8:row:dynamic", "8-bit integers on both sides, a scale per token"},
      {"W8A8-static", "int8:row", "int8:tensor:static", "8-bit integers on both sides, one calibrated scale per input"},
      {"W4A8", "int4:block128", "int8:row:dynamic", "4-bit weights, 8-bit inputs, a scale per token"},
      {"FP8", "fp8_e4m3:tensor", "fp8_e4m3:tensor:static", "FP8 on both sides, one scale per tensor, calibrated"},
      {"FP8_DYNAMIC", "fp8_e4m3:row", "fp8_e4m3:row:dynamic", "FP8 on both sides, a scale per channel and per token"},
      {"FP8_BLOCK", "fp8_e4m3:128x128", "fp8_e4m3:block128:dynamic", "FP8 on both sides, tiles of 128x128 and blocks of 128"},
      {"FP6", "fp6_e3m2:row", "", "6-bit floats, weights alone"},
      {"MXFP8", "mxfp8_e4m3", "mxfp8_e4m3:dynamic", "OCP MX FP8 on both sides"},
      {"MXFP4", "mxfp4", "mxfp4:dynamic", "OCP MX FP4 on both sides"},
      {"MXFP4A16", "mxfp4", "", "OCP MX FP4, weights alone"},
      {"NVFP4", "nvfp4", "nvfp4:static", "NVFP4 on both sides; the outer scale of inputs is calibrated"},
      {"NVFP4A16", "nvfp4", "", "NVFP4, weights alone"},
  };
  return table;
}

Recipe Recipe::of(std::string_view scheme_or_preset) {
  Recipe recipe;
  for (const Preset& preset : presets()) {
    if (!same_name(preset.name, scheme_or_preset)) continue;
    recipe.scheme = Scheme::parse(preset.weights);
    if (!preset.activations.empty()) recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse(preset.activations)};
    return recipe;
  }
  recipe.scheme = Scheme::parse(scheme_or_preset);
  return recipe;
}

}  // namespace narrow
