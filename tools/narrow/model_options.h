#pragma once
/// The options that say which model is run, on which tokens; shared by eval, generate, calibrate and compare.

#include <cstdint>
#include <string>
#include <vector>

#include "activation_options.h"
#include "commands.h"
#include "narrow/evaluate.h"
#include "narrow/model.h"

namespace narrow::command {

/// How a plain model is quantized as it is read, and the activations of any.
struct SchemeOptions {
  std::string scheme, cache = "fp32", compute = "bf16", device = "cpu";
  std::vector<std::string> rules;
  ActivationOptions activations;
};
void add_scheme_options(CLI::App& command, SchemeOptions& options);
ModelOptions make_model_options(const SchemeOptions& options);

/// --device: where a model runs.
void add_device_option(CLI::App& command, std::string& device);
/// cpu, cuda or cuda:N; throws InvalidArgument for another word.
Device parse_device(const std::string& text);

/// Which windows of tokens are read.
struct TokenOptions {
  std::string tokens, tensor, text;
  std::int64_t windows = 0, length = 512;
};
/// `tensor` is the name that a token file's tensor has by default.
void add_token_options(CLI::App& command, TokenOptions& options, const char* tensor);
/// The windows, and the bytes of text that their scored tokens stand for; 0 without a tokenizer.
struct LoadedTokens {
  TokenWindows windows;
  std::uint64_t scored_bytes = 0;
};
LoadedTokens load_tokens(const TokenOptions& options, const std::filesystem::path& model);

/// A whole text file.
std::string read_text_file(const std::string& path);
/// Windows of `length` tokens; a last one of at least two tokens may be shorter.
TokenWindows cut_windows(const std::vector<std::int32_t>& tokens, std::int64_t length);

}  // namespace narrow::command
