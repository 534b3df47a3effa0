#pragma once
/// The options that say which model is run, on which tokens; shared by eval, generate, calibrate and compare.

#include <cstdint>
#include <string>
#include <vector>

#include "commands.h"
#include "narrow/evaluate.h"
#include "narrow/model.h"

namespace narrow::command {

/// How a plain model is quantized as it is read, and the activations of any.
struct SchemeOptions {
  std::string scheme, activations, cache = "fp32", compute = "bf16";
  std::vector<std::string> rules, activation_rules;
};
void add_scheme_options(CLI::App& command, SchemeOptions& options);
ModelOptions make_model_options(const SchemeOptions& options);

/// Which windows of tokens are read.
struct TokenOptions {
  std::string tokens, tensor;
  std::int64_t windows = 0;
};
/// `tensor` is the name that a token file's tensor has by default.
void add_token_options(CLI::App& command, TokenOptions& options, const char* tensor);
TokenWindows load_tokens(const TokenOptions& options);

}  // namespace narrow::command
