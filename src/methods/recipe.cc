#include "methods/recipe_match.h"

#include <map>
#include <optional>

#include <fmt/format.h>

#include "io/bounded_regex.h"
#include "io/checkpoint_directory.h"
#include "io/json.h"
#include "io/text.h"
#include "io/weight_suffix.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::string_view kLinear = "Linear";
constexpr std::string_view kExpression = "re:";
/// A Linear layer too, but a small one whose rounding sends tokens to other experts.
constexpr std::string_view kRouter = "router of experts";

std::string_view module_of(std::string_view name) {
  if (name.ends_with(io::kWeightSuffix)) name.remove_suffix(io::kWeightSuffix.size());
  return name;
}

std::string_view last_part(std::string_view module) { return module.substr(module.rfind('.') + 1); }

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    if (text.find(word) != std::string_view::npos) return true;
  return false;
}

bool is_embedding(std::string_view module) {
  const std::string_view part = last_part(module);
  return has_any(part, {"emb", "relative_attention_bias"}) || part == "wte" || part == "wpe" || part == "shared";
}

bool is_norm(std::string_view module) {
  const std::string_view part = last_part(module);
  return has_any(part, {"norm", "Norm", "ln_"}) || part == "ln" || part == "ln1" || part == "ln2" || part == "ln0";
}

/// Why a tensor is left alone unless a target names it; empty for a Linear layer's weight.
std::string not_linear(std::string_view name, const Shape& shape) {
  const std::string_view module = module_of(name);
  if (is_norm(module)) return "norm";
  if (is_embedding(module)) return "embedding";
  if (!name.ends_with(io::kWeightSuffix)) return "not a weight";
  if (shape.size() != 2) return fmt::format("rank {}, not a matrix", shape.size());
  if (last_part(module) == "gate" || last_part(module) == "router") return std::string(kRouter);
  return {};
}

void check_scheme(const Scheme& scheme) {
  if (scheme.element.bits == 0) throw InvalidArgument("recipe: it has no scheme; name one such as int8:row");
  if (scheme.element.bits > 16)
    throw InvalidArgument(fmt::format("recipe: {} is not narrower than the tensors; name a scheme of at most 16 bits", scheme.to_string()));
}

/// Whether a model's layers are transformers' Conv1D, an x W + b whose W is [inputs, outputs].
bool has_conv1d(const Checkpoint& model) {
  const std::string text = model.config();
  if (text.empty()) return false;
  const io::Json config = io::parse_json(text, model.directory() / io::kConfigFile);
  if (!config.is_object() || !config.contains("model_type")) return false;
  const io::Json& type = config.at("model_type");
  return type == "gpt2" || type == "openai-gpt" || type == "imagegpt" || type == "decision_transformer";
}

bool is_conv1d(std::string_view module) {
  const std::string_view part = last_part(module);
  return part == "c_attn" || part == "q_attn" || part == "c_proj" || part == "c_fc";
}

class Pattern {
 public:
  explicit Pattern(const std::string& text) : text_(text) {
    if (text.empty())
      throw InvalidArgument("recipe: a pattern is empty; use a tensor's name, a module's name, Linear, or re: and a regular expression");
    if (text.starts_with(kExpression)) regex_.emplace(text.substr(kExpression.size()));
  }

  const std::string& text() const { return text_; }
  bool is_linear() const { return text_ == kLinear; }

  bool matches(std::string_view name) const {
    const std::string_view module = module_of(name);
    if (!regex_) return text_ == name || text_ == module || text_ == last_part(module);
    return regex_->matches(name) || regex_->matches(module);
  }

 private:
  std::string text_;
  std::optional<io::BoundedRegex> regex_;
};

}  // namespace

bool is_linear_weight(std::string_view name, const Shape& shape) {
  const std::string other = not_linear(name, shape);
  return other.empty() || other == kRouter;
}

struct RecipeMatcher::Patterns {
  std::vector<Pattern> targets, ignore;
  std::vector<std::pair<Pattern, Scheme>> rules;
};

RecipeMatcher::RecipeMatcher(const Recipe& recipe) : patterns_(std::make_unique<Patterns>()), scheme_(recipe.scheme) {
  check_scheme(recipe.scheme);
  for (const auto& [text, scheme] : recipe.rules) check_scheme(scheme);
  for (const std::string& text : recipe.targets) patterns_->targets.emplace_back(text);
  for (const std::string& text : recipe.ignore) patterns_->ignore.emplace_back(text);
  for (const auto& [text, scheme] : recipe.rules) patterns_->rules.emplace_back(Pattern(text), scheme);
}

RecipeMatcher::RecipeMatcher(const Recipe& recipe, const Checkpoint& model) : RecipeMatcher(recipe) { has_conv1d_ = has_conv1d(model); }

RecipeMatcher::~RecipeMatcher() = default;

RecipeMatcher::Decision RecipeMatcher::decide(std::string_view name, DType dtype, const Shape& shape) const {
  if (!is_floating(dtype)) return {.reason = fmt::format("{}: not F32, F16 or BF16", name_of(dtype))};
  for (const Pattern& pattern : patterns_->ignore)
    if (pattern.matches(name) || (pattern.is_linear() && not_linear(name, shape).empty()))
      return {.reason = "ignored by " + pattern.text()};
  Decision decision{Fate::kQuantize, scheme_, "Linear weight"};
  std::string other = not_linear(name, shape);
  if (other.empty() && has_conv1d_ && is_conv1d(module_of(name))) other = "Conv1D, [inputs, outputs]: narrow.torch quantizes it in memory";
  bool chosen = patterns_->targets.empty() && other.empty();
  for (const Pattern& pattern : patterns_->targets) {
    if (!(pattern.is_linear() ? other.empty() : pattern.matches(name))) continue;
    chosen = true;
    if (!pattern.is_linear()) decision.reason = "target " + pattern.text();
    break;
  }
  if (!chosen) return {.reason = patterns_->targets.empty() ? other : "not a target"};
  if (shape.empty()) return {.reason = "a scalar"};
  if (element_count(shape) == 0) return {.reason = "it has no elements"};  // but maybe 2^50 rows
  for (const auto& [pattern, scheme] : patterns_->rules)
    if (pattern.is_linear() ? other.empty() : pattern.matches(name)) return {Fate::kQuantize, scheme, "rule " + pattern.text()};
  return decision;
}

std::vector<std::string> idle_patterns(const Plan& plan, const Recipe& recipe) {
  const auto first = [&](const std::string& text) -> const PlannedTensor* {
    const Pattern pattern(text);
    for (const PlannedTensor& tensor : plan.tensors)
      if (pattern.is_linear() ? not_linear(tensor.name, tensor.shape).empty() : pattern.matches(tensor.name)) return &tensor;
    return nullptr;
  };
  std::vector<std::string> sentences;
  const auto expect_some = [&](std::string_view kind, const std::string& pattern) {
    if (first(pattern) == nullptr) sentences.push_back(fmt::format("the {} {} matches no tensor", kind, io::in_quotes(pattern)));
  };
  for (const std::string& pattern : recipe.targets) expect_some("target", pattern);
  for (const std::string& pattern : recipe.ignore)
    if (pattern != "lm_head") expect_some("pattern to ignore", pattern);
  for (const auto& [pattern, scheme] : recipe.rules) {
    bool decides = false;
    for (const PlannedTensor& tensor : plan.tensors)
      decides = decides || (tensor.fate == Fate::kQuantize && tensor.reason == "rule " + pattern);
    const PlannedTensor* tensor = decides ? nullptr : first(pattern);
    if (tensor != nullptr)
      sentences.push_back(fmt::format("the rule {} changes nothing: {} is {}", io::in_quotes(pattern), tensor->name,
                                      tensor->fate == Fate::kCopy ? fmt::format("left as it is ({})", tensor->reason)
                                                                  : fmt::format("taken by the {} before it", tensor->reason)));
    else if (!decides)
      expect_some("rule", pattern);
  }
  if (recipe.activations)
    for (const auto& [pattern, scheme] : recipe.activations->rules) expect_some("activation rule", pattern);
  return sentences;
}

void check_quantizes(const Plan& plan) {
  std::map<std::string_view, int> reasons;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.fate == Fate::kQuantize) return;
    ++reasons[tensor.reason];
  }
  std::string told;
  for (const auto& [reason, count] : reasons) told += fmt::format("{}{} x {}", told.empty() ? "" : ", ", count, io::in_quotes(reason));
  throw InvalidArgument(
      fmt::format("nothing would be quantized{}{}; `narrow plan` shows every tensor, targets name others", told.empty() ? "" : ": ", told));
}

void check_calibrated(const Plan& plan, const Recipe& recipe) {
  if (!recipe.activations) return;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.fate != Fate::kQuantize) continue;
    const std::string module(module_of(tensor.name));
    const std::optional<ActivationScheme> scheme = recipe.activations->scheme_of(module);
    if (scheme && scheme->is_static && !recipe.activations->scales.contains(module))
      throw InvalidArgument(
          fmt::format("the input of {} is {}, but no calibration gives its scale; run `narrow calibrate` and pass its file as statistics "
                      "(--stats), or take a dynamic scheme",
                      module, scheme->to_string()));
  }
}

bool pattern_matches(const std::string& pattern, std::string_view name) { return Pattern(pattern).matches(name); }

}  // namespace narrow
