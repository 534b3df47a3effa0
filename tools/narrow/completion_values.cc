/// What a shell offers for a value: the names that narrow knows, from its own tables, or files.

#include <algorithm>
#include <map>

#include "command_pages.h"
#include "device/cpu_features.h"
#include "narrow/layout.h"
#include "narrow/model_bench.h"
#include "narrow/recipe.h"

namespace narrow::command {
namespace {

using Words = std::vector<std::string>;

Words scheme_words() {
  Words words;
  for (const Scheme& scheme : standard_schemes()) words.push_back(scheme.to_string());
  return words;
}

Words scheme_and_preset_words() {
  Words words = scheme_words();
  for (const Preset& preset : presets()) words.emplace_back(preset.name);
  return words;
}

Words format_words() {
  Words words;
  for (const NamedFormat& format : kNamedFormats) words.emplace_back(format.name);
  for (const BlockFormat& block : block_formats()) words.emplace_back(block.name);
  for (const Preset& preset : presets()) words.emplace_back(preset.name);
  return words;
}

template <typename Range, typename Name>
Words words_of(const Range& range, const Name& name) {
  Words words;
  for (const auto& item : range) words.emplace_back(name(item));
  return words;
}

/// Values of an option or an argument, by its name; the last resort is none.
Words words_for(const CommandPages& pages, const CommandPage& page, const std::string& name) {
  static const std::map<std::string, Words> kFixed{
      {"SHELL", {"bash", "zsh", "fish"}},
      {"--activations", {"int8:row:dynamic", "int8:tensor:static", "fp8_e4m3:row:dynamic", "fp8_e4m3:tensor:static", "none"}},
      {"--as", {"narrow", "ct", "gptq", "awq", "fp8-block", "modelopt", "bnb", "gguf"}},
      {"--cluster", {"local:2", "local:4", "auto", "ray://"}},
      {"--compute", {"bf16", "fp32", "fp16"}},
      {"--device", {"cpu", "cuda", "cuda:1"}},
      {"--dtype", {"fp32", "bf16", "fp16"}},
      {"--export", {"ct", "gptq", "awq", "fp8-block", "modelopt", "gguf", "gguf:q8_0", "gguf:q4_0", "gguf:q4_k"}},
      {"--kv-cache", {"fp32", "fp16", "bf16", "fp8_e4m3:row", "int8:row"}},
      {"--method", {"rtn", "gptq", "gptq+clip", "awq", "smoothquant", "rotate", "correct", "clip", "refine"}},
      {"--on-nonfinite", {"error", "keep", "nearest"}},
      {"--range", {"minmax", "average", "percentile", "entropy", "mse"}},
      {"--rounding", {"nearest_even", "toward_zero", "stochastic"}},
      {"--to", {"narrow", "ct", "gptq", "awq", "fp8-block", "modelopt", "gguf", "gguf:q8_0", "gguf:q4_0", "gguf:q4_k"}},
  };
  if (const auto found = kFixed.find(name); found != kFixed.end()) return found->second;
  if (name == "--menu" || (name == "SCHEME" && page.name == "kernels")) return scheme_words();
  if (name == "SCHEME" || name == "--scheme" || name == "B") return scheme_and_preset_words();
  if (name == "--cpu") return words_of(all_isas(), [](Isa isa) { return name_of(isa); });
  if (name == "COMMAND") return words_of(pages.commands, [](const CommandPage& command) { return command.name; });
  if (name == "NAME" && page.name == "formats") return format_words();
  if (name == "NAME" && page.name == "layout") return words_of(all_layouts(), [](Layout layout) { return name_of(layout); });
  if (name == "--model") return words_of(model_presets(), [](const ModelPreset& preset) { return preset.name; });
  return {};
}

void offer_values(const CommandPages& pages, CommandPage& page) {
  for (OptionEntry& option : page.options) {
    option.words = words_for(pages, page, option.names.back());
    option.files = option.value.starts_with("FILE") || option.value == "DIR" || option.value == "MODEL" || option.value == "CONFIG" ||
                   option.value == "PROGRAM";
  }
  for (OptionEntry& argument : page.arguments) {
    constexpr std::string_view kPaths[] = {"IN", "OUT", "PATH", "MODEL", "TEXT", "A", "B"};
    argument.words = words_for(pages, page, argument.names.front());
    argument.files = std::find(std::begin(kPaths), std::end(kPaths), argument.names.front()) != std::end(kPaths);
  }
}

}  // namespace

void offer_values(CommandPages& pages) {
  offer_values(pages, pages.program);
  for (CommandPage& page : pages.commands) offer_values(pages, page);
}

}  // namespace narrow::command
