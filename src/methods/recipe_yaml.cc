/// Recipe::load_yaml: compiled with yaml-cpp where that was found.

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

class Reader {
 public:
  explicit Reader(std::filesystem::path path) : path_(std::move(path)) {}

  Recipe read(const YAML::Node& document) const {
    if (!document.IsMap()) fail(document, "a recipe is a map with the keys scheme, targets, ignore and rules");
    std::set<std::string> seen;
    Recipe recipe;
    for (const auto& entry : document) {
      const std::string key = text_of(entry.first);
      if (!seen.insert(key).second) fail(entry.first, fmt::format("the key {} is there twice", io::in_quotes(key)));
      if (key == "scheme") {
        recipe.scheme = scheme_of(entry.second);
      } else if (key == "targets") {
        recipe.targets = list_of(entry.second);
      } else if (key == "ignore") {
        recipe.ignore = list_of(entry.second);
      } else if (key == "rules") {
        recipe.rules = rules_of(entry.second);
      } else {
        fail(entry.first, fmt::format("the key {} is not known; use scheme, targets, ignore and rules", io::in_quotes(key)));
      }
    }
    if (!seen.contains("scheme")) fail(document, "it has no scheme");
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
  Scheme scheme_of(const YAML::Node& node) const {
    try {
      return Scheme::parse(text_of(node));
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
  std::vector<std::pair<std::string, Scheme>> rules_of(const YAML::Node& node) const {
    std::vector<std::pair<std::string, Scheme>> rules;
    if (node.IsNull()) return rules;
    if (!node.IsSequence()) fail(node, "a list of rules must be here");
    for (const YAML::Node& item : node) {
      if (item.IsScalar()) {
        const std::string text = item.Scalar();
        const std::size_t equals = text.find('=', 0);
        const std::size_t last = text.rfind("=", text.rfind(":scale=") == std::string::npos ? std::string::npos : text.rfind(":scale="));
        if (equals == std::string::npos) fail(item, "a rule is PATTERN=SCHEME");
        try {
          rules.emplace_back(text.substr(0, last), Scheme::parse(text.substr(last + 1)));
        } catch (const InvalidArgument& wrong) {
          fail(item, wrong.what());
        }
        continue;
      }
      if (!item.IsMap() || item.size() != 2 || !item["match"] || !item["scheme"]) fail(item, "a rule has the two keys match and scheme");
      rules.emplace_back(text_of(item["match"]), scheme_of(item["scheme"]));
    }
    return rules;
  }

  std::filesystem::path path_;
};

}  // namespace

Recipe Recipe::load_yaml(const std::filesystem::path& path) {
  const std::string text = io::read_text(path, kLargestRecipe);
  const Reader reader(path);
  try {
    return reader.read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, error.msg);
  }
}

}  // namespace narrow
