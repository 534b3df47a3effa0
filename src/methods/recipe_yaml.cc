/// Recipe::load_yaml: compiled with yaml-cpp where that was found.

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "io/file_reader.h"
#include "io/text.h"
#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

constexpr std::uint64_t kLargestRecipe = std::uint64_t{1} << 20;

constexpr std::string_view kKeys = "scheme, activations, targets, ignore, rules, activation_rules and on_nonfinite";

/// none leaves the inputs as they are.
std::optional<ActivationScheme> parse_inputs(std::string_view text) {
  return text == "none" ? std::nullopt : std::optional(ActivationScheme::parse(text));
}

class Reader {
 public:
  explicit Reader(std::filesystem::path path) : path_(std::move(path)) {}

  Recipe read(const YAML::Node& document) const {
    if (!document.IsMap()) fail(document, fmt::format("a recipe is a map with the keys {}", kKeys));
    std::set<std::string> seen;
    Recipe recipe, named;
    std::vector<std::pair<std::string, std::optional<ActivationScheme>>> input_rules;
    for (const auto& entry : document) {
      const std::string key = text_of(entry.first);
      if (!seen.insert(key).second) fail(entry.first, fmt::format("the key {} is there twice", io::in_quotes(key)));
      if (key == "scheme") {
        named = parsed(entry.second, text_of(entry.second), Recipe::of);
      } else if (key == "activations") {
        if (const auto inputs = parsed(entry.second, text_of(entry.second), parse_inputs)) recipe.activations = ActivationRecipe{*inputs};
      } else if (key == "targets") {
        recipe.targets = list_of(entry.second);
      } else if (key == "ignore") {
        recipe.ignore = list_of(entry.second);
      } else if (key == "rules") {
        recipe.rules = rules_of(entry.second, Scheme::parse);
      } else if (key == "activation_rules") {
        input_rules = rules_of(entry.second, parse_inputs);
      } else if (key == "on_nonfinite") {
        recipe.on_nonfinite = parsed(entry.second, text_of(entry.second), parse_on_nonfinite);
      } else {
        fail(entry.first, fmt::format("the key {} is not known; use {}", io::in_quotes(key), kKeys));
      }
    }
    if (!seen.contains("scheme")) fail(document, "it has no scheme");
    recipe.scheme = named.scheme;
    if (!seen.contains("activations")) recipe.activations = named.activations;
    if (!recipe.activations && !input_rules.empty()) fail(document, "activation_rules need activations, or a preset that has them");
    if (recipe.activations) recipe.activations->rules = std::move(input_rules);
    return recipe;
  }

  [[noreturn]] void fail(const YAML::Mark& mark, std::string_view why) const {
    throw InvalidArgument(fmt::format("{}:{}: {}", path_.string(), mark.is_null() ? 1 : mark.line + 1, why));
  }
  [[noreturn]] void fail(const YAML::Node& node, std::string_view why) const { fail(node.Mark(), why); }

 private:
  std::string text_of(const YAML::Node& node) const {
    if (!node.IsScalar()) fail(node, "a text must be here");
    return node.Scalar();
  }
  template <typename Value>
  Value parsed(const YAML::Node& node, const std::string& text, Value (*parse)(std::string_view)) const {
    try {
      return parse(text);
    } catch (const InvalidArgument& wrong) {
      fail(node, wrong.what());
    }
  }
  std::vector<std::string> list_of(const YAML::Node& node) const {
    std::vector<std::string> texts;
    if (node.IsNull()) return texts;
    if (node.IsScalar()) return {node.Scalar()};
    if (!node.IsSequence()) fail(node, "a list of patterns must be here");
    for (const YAML::Node& item : node) texts.push_back(text_of(item));
    return texts;
  }
  /// - {match: PATTERN, scheme: SCHEME}   or   - PATTERN=SCHEME
  template <typename Value>
  std::vector<std::pair<std::string, Value>> rules_of(const YAML::Node& node, Value (*parse)(std::string_view)) const {
    std::vector<std::pair<std::string, Value>> rules;
    if (node.IsNull()) return rules;
    if (!node.IsSequence()) fail(node, "a list of rules must be here");
    for (const YAML::Node& item : node) {
      if (item.IsScalar()) {
        const std::string text = item.Scalar();
        const std::size_t equals = text.rfind('=', text.rfind(":scale="));  // npos, where no scale is named: the last of all
        if (equals == std::string::npos) fail(item, "a rule is PATTERN=SCHEME");
        rules.emplace_back(text.substr(0, equals), parsed(item, text.substr(equals + 1), parse));
        continue;
      }
      if (!item.IsMap() || item.size() != 2 || !item["match"] || !item["scheme"]) fail(item, "a rule has the two keys match and scheme");
      rules.emplace_back(text_of(item["match"]), parsed(item["scheme"], text_of(item["scheme"]), parse));
    }
    return rules;
  }

  std::filesystem::path path_;
};

/// yaml-cpp keeps every token of what is open, and takes 100 ns for a character: brackets and the lengths of lines are counted before it
/// sees them. Quoted brackets count too, up to the same limit.
void check_text(const std::string& text, const Reader& reader) {
  constexpr int kDeepest = 64, kLongestLine = 16384;
  if (text.find('\0') != std::string::npos || !io::is_utf8(text)) reader.fail(YAML::Mark(), "it is not a text in UTF-8");
  int depth = 0, length = 0;
  YAML::Mark mark;
  mark.line = 0;
  for (const char c : text) {
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    mark.line += c == '\n';
    if (depth > kDeepest) reader.fail(mark, fmt::format("it nests deeper than {} levels", kDeepest));
    if (c == '\n') depth = std::max(depth, 0), length = 0;
    if (++length > kLongestLine) reader.fail(mark, fmt::format("the line is longer than {} bytes", kLongestLine));
  }
}

/// A sentence of yaml-cpp may quote what it read.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

}  // namespace

Recipe Recipe::load_yaml(const std::filesystem::path& path) {
  const std::string text = io::read_text(path, kLargestRecipe);
  const Reader reader(path);
  check_text(text, reader);
  try {
    return reader.read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, one_line(error.msg));
  }
}

}  // namespace narrow
