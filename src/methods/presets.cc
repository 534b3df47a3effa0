/// The presets: one row each.

#include <algorithm>

#include <fmt/format.h>

#include "format/quoted.h"
#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

/// In capitals, since nvfp4 and mxfp4 are schemes; a hyphen or an underscore.
bool same_name(std::string_view a, std::string_view b, bool any_case = false) {
  const auto plain = [&](char c) { return c == '-' ? '_' : any_case && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return plain(x) == plain(y); });
}

/// Q4_K_M, q8_0, iq4_nl: what llama.cpp calls its blocks and its mixtures of them.
bool is_ggml_type(std::string_view name) {
  if (!name.empty() && (name[0] == 'i' || name[0] == 'I')) name.remove_prefix(1);
  return name.size() >= 4 && (name[0] == 'q' || name[0] == 'Q') && name[1] >= '1' && name[1] <= '8' && name[2] == '_';
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
  try {
    recipe.scheme = Scheme::parse(scheme_or_preset);
  } catch (const InvalidArgument& error) {
    for (const Preset& preset : presets())
      if (same_name(preset.name, scheme_or_preset, true))
        throw InvalidArgument(fmt::format("{}; the preset is written {}", error.what(), preset.name));
    if (is_ggml_type(scheme_or_preset))
      throw InvalidArgument(fmt::format("{} is a type of GGUF, not a scheme; `narrow convert IN OUT.gguf --to gguf:q4_k` writes such files",
                                        in_quotes(scheme_or_preset)));
    throw;
  }
  return recipe;
}

}  // namespace narrow
