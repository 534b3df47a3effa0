/// Recipes as one line of JSON.

#include <array>

#include <fmt/format.h>

#include "io/text.h"
#include "methods/activation_recipe.h"
#include "narrow/error.h"

namespace narrow {
namespace {

// By the enumerators' own order.
constexpr std::array<std::string_view, 3> kRoundings{"nearest_even", "toward_zero", "stochastic"};
constexpr std::array<std::string_view, 2> kOverflows{"saturate", "ieee"};
constexpr std::array<std::string_view, 2> kNonFinites{"error", "saturate"};
static_assert(static_cast<int>(Rounding::kStochastic) == 2 && static_cast<int>(Overflow::kIeee) == 1);
static_assert(static_cast<int>(NonFinite::kSaturate) == 1);

template <typename Enum, std::size_t kCount>
Enum parse_word(const io::Json& json, const char* key, const std::array<std::string_view, kCount>& words) {
  const std::string word = json.at(key).get<std::string>();
  for (std::size_t i = 0; i < kCount; ++i)
    if (word == words[i]) return static_cast<Enum>(i);
  throw InvalidArgument(fmt::format("recipe: its {} cannot be {}", key, io::in_quotes(word)));
}

}  // namespace

std::string Recipe::to_json() const {
  if (options.scales || options.zero_points || options.outer_scale)
    throw InvalidArgument("recipe: scales that are known beforehand belong to one tensor, not to a recipe");
  io::OrderedJson json{{"scheme", scheme.to_string()}, {"targets", targets}, {"ignore", ignore}, {"rules", io::OrderedJson::array()}};
  for (const auto& [pattern, replacement] : rules) json["rules"].push_back({{"match", pattern}, {"scheme", replacement.to_string()}});
  json["rounding"] = kRoundings[static_cast<std::size_t>(options.rounding)];
  json["overflow"] = kOverflows[static_cast<std::size_t>(options.overflow)];
  json["nonfinite"] = kNonFinites[static_cast<std::size_t>(options.nonfinite)];
  json["on_nonfinite"] = name_of(on_nonfinite);
  json["seed"] = options.seed;
  if (activations) json["activations"] = activations_json(*activations);
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("recipe: a pattern is not UTF-8");
  }
}

Recipe Recipe::from_json(std::string_view text) {
  try {
    const io::Json json = io::parse_json(text, "recipe");
    Recipe recipe{.scheme = Scheme::parse(json.at("scheme").get<std::string>()),
                  .targets = json.at("targets").get<std::vector<std::string>>(),
                  .ignore = json.at("ignore").get<std::vector<std::string>>()};
    for (const io::Json& rule : json.at("rules"))
      recipe.rules.emplace_back(rule.at("match").get<std::string>(), Scheme::parse(rule.at("scheme").get<std::string>()));
    recipe.options.rounding = parse_word<Rounding>(json, "rounding", kRoundings);
    recipe.options.overflow = parse_word<Overflow>(json, "overflow", kOverflows);
    recipe.options.nonfinite = parse_word<NonFinite>(json, "nonfinite", kNonFinites);
    recipe.on_nonfinite = parse_on_nonfinite(json.at("on_nonfinite").get<std::string>());
    if (!json.at("seed").is_number_unsigned()) throw InvalidArgument("recipe: its seed is not a whole number from 0 to 2^64 - 1");
    recipe.options.seed = json.at("seed").get<std::uint64_t>();
    if (json.contains("activations")) recipe.activations = parse_activations(json.at("activations"));
    return recipe;
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("recipe: its JSON lacks a field, or one has another type");
  } catch (const CorruptFile& broken) {
    throw InvalidArgument(broken.what());
  }
}

}  // namespace narrow
