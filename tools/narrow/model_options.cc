#include "model_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "io/file_reader.h"
#include "narrow/error.h"
#include "narrow/tokenizer.h"
#include "value_checks.h"

namespace narrow::command {
void add_scheme_options(CLI::App& command, SchemeOptions& options) {
  command.add_option("--scheme", options.scheme, "Quantize a plain model as it is read: int8:row, nvfp4, .., or a preset: W8A8, ..")
      ->option_text("SCHEME");
  command.add_option("--rule", options.rules, "Another scheme for some weights: 're:.*down_proj=int8:row'")
      ->option_text("PATTERN=SCHEME ...");
  add_activation_options(command, options.activations);
  command
      .add_option("--compute", options.compute,
                  "Inputs that are not rounded: bf16 (default: of dense bf16 layers), fp32, or fp16 (on CUDA)")
      ->option_text("TYPE")
      ->check(CLI::IsMember({"bf16", "fp32", "fp16"}).description(""));
  command.add_option("--kv-cache", options.cache, "Keys and values in fp32 (default), fp16, bf16, fp8_e4m3:row, int8:row")
      ->option_text("SCHEME");
  add_device_option(command, options.device);
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "Where the model runs: cpu (default), cuda, cuda:1, ..")->option_text("DEVICE");
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(0);
  int index = 0;
  if (text.starts_with("cuda:")) {
    const char *begin = text.data() + 5, *end = text.data() + text.size();
    if (const auto [stop, error] = std::from_chars(begin, end, index); error == std::errc{} && stop == end && index >= 0)
      return Device::cuda(index);
  }
  throw InvalidArgument(fmt::format("--device is '{}'; it must be cpu, cuda or cuda:N", text));
}

ModelOptions make_model_options(const SchemeOptions& options) {
  ModelOptions result;
  result.device = parse_device(options.device);
  result.compute = options.compute == "bf16" ? Compute::kBf16 : (options.compute == "fp16" ? Compute::kFp16 : Compute::kFp32);
  if (!options.scheme.empty()) {
    result.recipe = Recipe::of(options.scheme);
    for (const std::string& rule : options.rules) {
      const auto [pattern, scheme] = split_rule("--rule", rule);
      result.recipe->rules.emplace_back(pattern, Scheme::parse(scheme));
    }
    apply_activation_options(options.activations, result.recipe->activations);
  } else {
    apply_activation_options(options.activations, result.activations);
  }
  return result;
}

void add_token_options(CLI::App& command, TokenOptions& options, const char* tensor) {
  options.tensor = tensor;
  command.add_option("--tokens", options.tokens, "A safetensors file with a tensor [windows, length] of tokens")->option_text("FILE");
  command.add_option("--tensor", options.tensor, fmt::format("That tensor's name (default: {})", tensor))->option_text("NAME");
  command.add_option("--text", options.text, "Plain text instead, cut into windows by the model's tokenizer.json")->option_text("FILE");
  command.add_option("--length", options.length, "Tokens of a window of --text (default 512)")
      ->option_text("N")
      ->check(number_from(2, 1 << 24));
  command.add_option("--windows", options.windows, "Read the first N windows alone")->option_text("N")->check(number_from(1, 1 << 30));
}

std::string read_text_file(const std::string& path) {
  constexpr std::uint64_t kLargestText = std::uint64_t{1} << 32;
  return io::read_text(path, kLargestText);
}

TokenWindows cut_windows(const std::vector<std::int32_t>& tokens, std::int64_t length) {
  TokenWindows windows;
  const std::size_t step = static_cast<std::size_t>(length);
  for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += step)
    windows.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                         tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), begin + step)));
  return windows;
}

namespace {

/// --tokens; who gives it a text is told of --text.
TokenWindows read_tokens(const TokenOptions& options) {
  try {
    return read_token_windows(options.tokens, options.tensor);
  } catch (const CorruptFile& error) {
    throw CorruptFile(
        fmt::format("{}; --tokens takes tokens in a safetensors file (`narrow tokenize` makes one), --text a text", error.what()));
  }
}

}  // namespace

LoadedTokens load_tokens(const TokenOptions& options, const std::filesystem::path& model) {
  if (options.tokens.empty() == options.text.empty()) throw InvalidArgument("give the tokens to read: either --tokens FILE or --text FILE");
  const std::filesystem::path directory = std::filesystem::is_directory(model) ? model : model.parent_path();
  std::optional<Tokenizer> tokenizer;
  if (!options.text.empty() || std::filesystem::exists(directory / "tokenizer.json")) tokenizer = open_tokenizer(directory);
  LoadedTokens loaded;
  loaded.windows =
      options.text.empty() ? read_tokens(options) : cut_windows(tokenizer->encode(read_text_file(options.text)), options.length);
  if (options.windows > 0 && static_cast<std::size_t>(options.windows) < loaded.windows.size())
    loaded.windows.resize(static_cast<std::size_t>(options.windows));
  if (tokenizer)
    for (const auto& window : loaded.windows)
      for (std::size_t i = 1; i < window.size(); ++i) loaded.scored_bytes += tokenizer->bytes(window[i]).size();
  return loaded;
}

}  // namespace narrow::command
