#pragma once
/// The options that say which tensors become what; shared by plan and quantize.

#include <cstdint>
#include <string>
#include <vector>

#include "activation_options.h"
#include "commands.h"
#include "narrow/recipe.h"

namespace narrow::command {

struct RecipeOptions {
  std::string scheme, recipe_file, rounding = "nearest_even", on_nonfinite = "error";
  std::vector<std::string> targets, ignore, rules;
  ActivationOptions activations;
  std::uint64_t seed = 0;
};

/// Adds the positional SCHEME (after the command's own ones) and the flags. SCHEME may be left out with --recipe.
void add_recipe_options(CLI::App& command, const Context& context, RecipeOptions& options);

/// The patterns of --ignore; the word none alone stands for no pattern.
std::vector<std::string> patterns_to_ignore(const std::vector<std::string>& words);

/// The file's recipe, or one of SCHEME; then the flags: SCHEME, --targets and --ignore replace, --rule goes first.
Recipe make_recipe(const CLI::App& command, const RecipeOptions& options);

}  // namespace narrow::command
