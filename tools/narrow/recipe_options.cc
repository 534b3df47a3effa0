#include "recipe_options.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::command {
namespace {

Rounding parse_rounding(const std::string& name) {
  if (name == "nearest_even") return Rounding::kNearestEven;
  if (name == "toward_zero") return Rounding::kTowardZero;
  if (name == "stochastic") return Rounding::kStochastic;
  throw InvalidArgument(fmt::format("--rounding '{}' is none of nearest_even, toward_zero, stochastic", name));
}

}  // namespace

void add_recipe_options(CLI::App& command, const Context& context, RecipeOptions& options) {
  command
      .add_option("SCHEME", options.scheme, "What weights become: int8:row, int4:block128, nvfp4, .., or a preset: W8A8, FP8_DYNAMIC, ..")
      ->type_name("")
      ->required(!context.has_argument("--recipe"));
  command.add_option("--targets", options.targets, "Quantize these, not all Linear weights: names, or re:REGEX")
      ->option_text("PATTERN ...");
  command.add_option("--ignore", options.ignore, "Leave these alone (default: lm_head), targets or not; none: nothing")
      ->option_text("PATTERN ...");
  command.add_option("--rule", options.rules, "Another scheme for some: 're:.*down_proj=int8:row'")->option_text("PATTERN=SCHEME ...");
  command.add_option("--recipe", options.recipe_file, "A YAML file with scheme, activations, targets, ignore, rules; flags win")
      ->option_text("FILE");
  add_activation_options(command, options.activations);
  command.add_option("--rounding", options.rounding, "nearest_even (default), toward_zero or stochastic")->option_text("HOW");
  command
      .add_option("--on-nonfinite", options.on_nonfinite,
                  "A tensor with NaN or infinities that its scheme cannot hold: error (default), keep it as it is,\nor nearest: NaN to "
                  "zero, infinities to the largest value")
      ->option_text("POLICY");
  command.add_option("--seed", options.seed, "Seed of stochastic rounding (default 0)")->option_text("N");
}

std::vector<std::string> patterns_to_ignore(const std::vector<std::string>& words) {
  return words == std::vector<std::string>{"none"} ? std::vector<std::string>{} : words;
}

Recipe make_recipe(const CLI::App& command, const RecipeOptions& options) {
  Recipe recipe;
  if (!options.recipe_file.empty()) recipe = Recipe::load_yaml(options.recipe_file);
  if (!options.scheme.empty()) {
    const Recipe named = Recipe::of(options.scheme);
    recipe.scheme = named.scheme;
    recipe.activations = named.activations;
  }
  apply_activation_options(options.activations, recipe.activations);
  if (!options.targets.empty()) recipe.targets = options.targets;
  if (!options.ignore.empty()) recipe.ignore = patterns_to_ignore(options.ignore);
  std::vector<std::pair<std::string, Scheme>> rules;
  for (const std::string& rule : options.rules) {
    const auto [pattern, scheme] = split_rule("--rule", rule);
    rules.emplace_back(pattern, Scheme::parse(scheme));
  }
  recipe.rules.insert(recipe.rules.begin(), rules.begin(), rules.end());
  if (command.count("--rounding") > 0) recipe.options.rounding = parse_rounding(options.rounding);
  if (command.count("--on-nonfinite") > 0) recipe.on_nonfinite = parse_on_nonfinite(options.on_nonfinite);
  if (command.count("--seed") > 0) recipe.options.seed = options.seed;
  return recipe;
}

}  // namespace narrow::command
