#include "activation_options.h"

#include <fmt/format.h>

#include "narrow/calibrate.h"
#include "narrow/error.h"

namespace narrow::command {

std::pair<std::string, std::string> split_rule(const char* option, const std::string& rule) {
  std::size_t equals = rule.rfind('=');
  while (equals != std::string::npos && equals > 0 && rule.substr(0, equals).ends_with(":scale")) equals = rule.rfind('=', equals - 1);
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(fmt::format("{} '{}' is not PATTERN=SCHEME; write for example 're:.*down_proj=int8:row'", option, rule));
  return {rule.substr(0, equals), rule.substr(equals + 1)};
}

void add_activation_options(CLI::App& command, ActivationOptions& options) {
  command
      .add_option("--activations", options.activations,
                  "Round the inputs of quantized layers: int8:row:dynamic, int8:tensor:static, none, ..")
      ->option_text("SCHEME");
  command.add_option("--activation-rule", options.rules, "Another one for some inputs, or none: 'down_proj=int8:row:dynamic'")
      ->option_text("PATTERN=SCHEME ...");
  command.add_option("--stats", options.statistics, "What narrow calibrate wrote; static scales come from it")->option_text("FILE");
  command.add_option("--range", options.range, "How: minmax (default), average, percentile, percentile=P, entropy, mse")
      ->option_text("METHOD");
}

void apply_activation_options(const ActivationOptions& options, std::optional<ActivationRecipe>& activations) {
  if (options.activations == "none") activations.reset();
  if (!options.activations.empty() && options.activations != "none")
    activations = ActivationRecipe{.scheme = ActivationScheme::parse(options.activations)};
  if (!activations) {
    if (!options.rules.empty())
      throw InvalidArgument("--activation-rule needs activations: --activations SCHEME, or a preset that has them");
    return;
  }
  std::vector<std::pair<std::string, std::optional<ActivationScheme>>> rules;
  for (const std::string& rule : options.rules) {
    const auto [pattern, scheme] = split_rule("--activation-rule", rule);
    rules.emplace_back(pattern, scheme == "none" ? std::nullopt : std::optional(ActivationScheme::parse(scheme)));
  }
  activations->rules.insert(activations->rules.begin(), rules.begin(), rules.end());
  const RangeMethod method = RangeMethod::parse(options.range);
  if (!options.statistics.empty()) set_static_scales(*activations, CalibrationStatistics::load(options.statistics), method);
}

}  // namespace narrow::command
