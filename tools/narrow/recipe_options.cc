#include "recipe_options.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::command {
namespace {

/// PATTERN=SCHEME, where both may hold '=': the pattern ends at the last one that is not the scheme's "scale=".
std::pair<std::string, Scheme> parse_rule(const std::string& rule) {
  std::size_t equals = rule.rfind('=');
  while (equals != std::string::npos && equals > 0 && rule.substr(0, equals).ends_with(":scale")) equals = rule.rfind('=', equals - 1);
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(fmt::format("--rule '{}' is not PATTERN=SCHEME; write for example 're:.*down_proj=int8:row'", rule));
  return {rule.substr(0, equals), Scheme::parse(std::string_view(rule).substr(equals + 1))};
}

Rounding parse_rounding(const std::string& name) {
  if (name == "nearest_even") return Rounding::kNearestEven;
  if (name == "toward_zero") return Rounding::kTowardZero;
  if (name == "stochastic") return Rounding::kStochastic;
  throw InvalidArgument(fmt::format("--rounding '{}' is none of nearest_even, toward_zero, stochastic", name));
}

}  // namespace

void add_recipe_options(CLI::App& command, const Context& context, RecipeOptions& options) {
  command.add_option("SCHEME", options.scheme, "What weights become: int8:row, int4:block128, nvfp4, ..")
      ->type_name("")
      ->required(!context.has_argument("--recipe"));
  command.add_option("--targets", options.targets, "Quantize these, not all Linear weights: names, or re:REGEX")
      ->option_text("PATTERN ...");
  command.add_option("--ignore", options.ignore, "Leave these alone (default: lm_head), targets or not")->option_text("PATTERN ...");
  command.add_option("--rule", options.rules, "Another scheme for some: 're:.*down_proj=int8:row'")->option_text("PATTERN=SCHEME ...");
  command.add_option("--recipe", options.recipe_file, "A YAML file with scheme, targets, ignore, rules; flags win")->option_text("FILE");
  command.add_option("--rounding", options.rounding, "nearest_even (default), toward_zero or stochastic")->option_text("HOW");
  command.add_option("--seed", options.seed, "Seed of stochastic rounding (default 0)")->option_text("N");
}

Recipe make_recipe(const CLI::App& command, const RecipeOptions& options) {
  Recipe recipe;
  if (!options.recipe_file.empty()) recipe = Recipe::load_yaml(options.recipe_file);
  if (!options.scheme.empty()) recipe.scheme = Scheme::parse(options.scheme);
  if (!options.targets.empty()) recipe.targets = options.targets;
  if (!options.ignore.empty()) recipe.ignore = options.ignore;
  std::vector<std::pair<std::string, Scheme>> rules;
  for (const std::string& rule : options.rules) rules.push_back(parse_rule(rule));
  recipe.rules.insert(recipe.rules.begin(), rules.begin(), rules.end());
  if (command.count("--rounding") > 0) recipe.options.rounding = parse_rounding(options.rounding);
  if (command.count("--seed") > 0) recipe.options.seed = options.seed;
  return recipe;
}

}  // namespace narrow::command
