#include "model_options.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::command {
namespace {

/// PATTERN=SCHEME; the pattern may hold '=', the scheme only in "scale=".
std::pair<std::string, std::string> split_rule(const char* option, const std::string& rule) {
  std::size_t equals = rule.rfind('=');
  while (equals != std::string::npos && equals > 0 && rule.substr(0, equals).ends_with(":scale")) equals = rule.rfind('=', equals - 1);
  if (equals == std::string::npos || equals == 0) throw InvalidArgument(fmt::format("{} '{}' is not PATTERN=SCHEME", option, rule));
  return {rule.substr(0, equals), rule.substr(equals + 1)};
}

}  // namespace

void add_scheme_options(CLI::App& command, SchemeOptions& options) {
  command.add_option("--scheme", options.scheme, "Quantize a plain model's Linear weights as it is read: int8:row, nvfp4, ..")->option_text("SCHEME");
  command.add_option("--rule", options.rules, "Another scheme for some weights: 're:.*down_proj=int8:row'")->option_text("PATTERN=SCHEME ...");
  command.add_option("--activations", options.activations, "Round the inputs of quantized layers: int8:row:dynamic, ..")->option_text("SCHEME");
  command.add_option("--activation-rule", options.activation_rules, "Another one for some inputs, or none: 'down_proj=none'")->option_text("PATTERN=SCHEME ...");
  command.add_option("--compute", options.compute, "Inputs of dense bf16 layers: bf16 (default) or fp32; sums are fp32")->option_text("TYPE")->check(
      CLI::IsMember({"bf16", "fp32"}).description(""));
  command.add_option("--kv-cache", options.cache, "Keys and values in fp32 (default), fp16, bf16, fp8_e4m3:row, int8:row")->option_text("SCHEME");
}

ModelOptions make_model_options(const SchemeOptions& options) {
  ModelOptions result;
  result.compute = options.compute == "bf16" ? Compute::kBf16 : Compute::kFp32;
  std::optional<ActivationRecipe> activations;
  if (!options.activations.empty()) {
    activations.emplace();
    activations->scheme = ActivationScheme::parse(options.activations);
    for (const std::string& rule : options.activation_rules) {
      const auto [pattern, scheme] = split_rule("--activation-rule", rule);
      activations->rules.emplace_back(pattern, scheme == "none" ? std::nullopt : std::optional(ActivationScheme::parse(scheme)));
    }
  }
  if (!options.scheme.empty()) {
    result.recipe.emplace();
    result.recipe->scheme = Scheme::parse(options.scheme);
    for (const std::string& rule : options.rules) {
      const auto [pattern, scheme] = split_rule("--rule", rule);
      result.recipe->rules.emplace_back(pattern, Scheme::parse(scheme));
    }
  }
  result.activations = activations;
  return result;
}

void add_token_options(CLI::App& command, TokenOptions& options, const char* tensor) {
  options.tensor = tensor;
  command.add_option("--tokens", options.tokens, "A safetensors file with a tensor [windows, length] of tokens")->option_text("FILE")->required();
  command.add_option("--tensor", options.tensor, fmt::format("That tensor's name (default: {})", tensor))->option_text("NAME");
  command.add_option("--windows", options.windows, "Read the first N windows alone")->option_text("N")->check(CLI::Range(1, 1 << 30).description(""));
}

TokenWindows load_tokens(const TokenOptions& options) {
  TokenWindows windows = read_token_windows(options.tokens, options.tensor);
  if (options.windows > 0 && static_cast<std::size_t>(options.windows) < windows.size()) windows.resize(static_cast<std::size_t>(options.windows));
  return windows;
}

}  // namespace narrow::command
