#pragma once
/// The options that say what becomes of the inputs of Linear layers; shared by quantize, eval, generate and compare.

#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "narrow/recipe.h"

namespace narrow::command {

struct ActivationOptions {
  std::string activations, statistics, range = "minmax";
  std::vector<std::string> rules;
};
void add_activation_options(CLI::App& command, ActivationOptions& options);
/// The recipe's activations: a preset's, or the option's; with rules and, where some are static, the scales of the statistics file.
void apply_activation_options(const ActivationOptions& options, std::optional<ActivationRecipe>& activations);

/// PATTERN=SCHEME, where both may hold '=': the pattern ends at the last one that is not the scheme's "scale=".
std::pair<std::string, std::string> split_rule(const char* option, const std::string& rule);

}  // namespace narrow::command
