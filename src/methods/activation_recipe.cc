#include "methods/activation_recipe.h"

#include <cmath>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/interop.h"
#include "io/text.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::string_view kDynamic = ":dynamic", kStatic = ":static", kNone = "none";

/// Dynamic scales must come from one token alone, so that no result depends on what else is in the batch.
void check(const ActivationScheme& activation, std::string_view text) {
  const Scheme& scheme = activation.scheme;
  const bool by_token = scheme.granularity.kind == Granularity::Kind::kNone ||
                        (scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows == 1);
  const bool whole = scheme.granularity.kind == Granularity::Kind::kTensor;
  if (activation.is_static && !whole && !scheme.has_outer_scale)
    throw InvalidArgument(
        fmt::format("activations {}: static scales are one per tensor; use for example int8:tensor:static", io::in_quotes(text)));
  if (!activation.is_static && (!by_token || scheme.has_outer_scale))
    throw InvalidArgument(
        fmt::format("activations {}: dynamic scales belong to a token (row, blockB); a scale over the whole tensor must be static",
                    io::in_quotes(text)));
}

io::Json rule_scheme(const std::optional<ActivationScheme>& scheme) { return scheme ? scheme->to_string() : std::string(kNone); }

}  // namespace

ActivationScheme ActivationScheme::parse(std::string_view text) {
  ActivationScheme result;
  std::string_view scheme = text;
  if (scheme.ends_with(kStatic)) {
    result.is_static = true;
    scheme.remove_suffix(kStatic.size());
  } else if (scheme.ends_with(kDynamic)) {
    scheme.remove_suffix(kDynamic.size());
  }
  result.scheme = Scheme::parse(scheme);
  check(result, text);
  return result;
}

std::string ActivationScheme::to_string() const { return scheme.to_string() + std::string(is_static ? kStatic : kDynamic); }

std::optional<ActivationScheme> ActivationRecipe::scheme_of(std::string_view module) const {
  for (const auto& [pattern, replacement] : rules)
    if (pattern_matches(pattern, module)) return replacement;
  return scheme;
}

io::OrderedJson activations_json(const ActivationRecipe& recipe) {
  io::OrderedJson rules = io::OrderedJson::array(), scales = io::OrderedJson::object();
  for (const auto& [pattern, scheme] : recipe.rules) rules.push_back({{"match", pattern}, {"scheme", rule_scheme(scheme)}});
  for (const auto& [module, scale] : recipe.scales) scales[module] = {{"scale", scale.scale}, {"zero_point", scale.zero_point}};
  return {{"scheme", recipe.scheme.to_string()}, {"rules", rules}, {"scales", scales}};
}

ActivationRecipe parse_activations(const io::Json& json) {
  ActivationRecipe recipe;
  recipe.scheme = ActivationScheme::parse(json.at("scheme").get<std::string>());
  for (const io::Json& rule : json.at("rules")) {
    const std::string scheme = rule.at("scheme").get<std::string>();
    recipe.rules.emplace_back(rule.at("match").get<std::string>(),
                              scheme == kNone ? std::nullopt : std::optional(ActivationScheme::parse(scheme)));
  }
  for (const auto& [module, entry] : json.at("scales").items()) {
    const std::int64_t zero = io::whole_number(entry, "zero_point");
    if (zero < 0 || zero > 255) throw InvalidArgument(fmt::format("the zero point of {} is {}", io::in_quotes(module), zero));
    const StaticScale scale{entry.at("scale").get<float>(), static_cast<std::uint8_t>(zero)};
    if (!(scale.scale > 0.0f) || !std::isfinite(scale.scale))
      throw InvalidArgument(fmt::format("the scale of {} is not a positive number", io::in_quotes(module)));
    recipe.scales[module] = scale;
  }
  return recipe;
}

std::optional<ActivationRecipe> read_activations(const Checkpoint& checkpoint) {
  if (const auto reader = io::InteropReader::open(checkpoint)) return reader->activations();
  const std::string text = checkpoint.config();
  if (text.empty()) return std::nullopt;
  const std::filesystem::path path = checkpoint.directory() / io::kConfigFile;
  const io::Json config = io::parse_json(text, path);
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object() || quantization->value("quant_method", io::Json()) != "narrow" ||
      !quantization->contains("activations"))
    return std::nullopt;
  try {
    return parse_activations(quantization->at("activations"));
  } catch (const nlohmann::json::exception&) {
    throw CorruptFile(fmt::format("{}: quantization_config.activations lacks a field, or one has another type", path.string()));
  } catch (const InvalidArgument& wrong) {
    throw CorruptFile(fmt::format("{}: quantization_config.activations: {}", path.string(), wrong.what()));
  }
}

}  // namespace narrow
