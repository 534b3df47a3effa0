#include "narrow/search.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "io/text.h"
#include "io/weight_suffix.h"
#include "methods/knapsack.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

constexpr std::size_t kCurvePoints = 30;

double bits_of(std::uint64_t bytes, std::uint64_t weights) {
  return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0.0;
}

void check(const SearchOptions& options, std::span<const std::vector<std::int32_t>> windows) {
  if (options.bits.has_value() + options.bytes.has_value() + options.divergence.has_value() != 1)
    throw InvalidArgument("search: give one budget: bits per weight, bytes, or the largest divergence");
  if ((options.bits && !(*options.bits > 0.0)) || (options.divergence && !(*options.divergence > 0.0)))
    throw InvalidArgument("search: a budget is a positive number");
  if (windows.empty() || options.probe_windows == 0) throw InvalidArgument("search: it measures on a text; give tokens or text");
  if (options.method.folds() || options.method.correct || options.method.tune)
    throw InvalidArgument(
        fmt::format("search: layers are measured one at a time, and {} changes several at once", options.method.to_string()));
}

/// What no assignment can reach is said before anything is measured.
void check_budget(const SearchOptions& options, const std::vector<SearchedModule>& modules, std::uint64_t weights) {
  std::uint64_t least = 0;
  for (const SearchedModule& module : modules) least += *std::min_element(module.bytes.begin(), module.bytes.end());
  const bool fits = (!options.bits || bits_of(least, weights) <= *options.bits) && (!options.bytes || least <= *options.bytes);
  if (!fits)
    throw InvalidArgument(fmt::format("search: nothing of the menu fits into {}; the smallest takes {} bytes, {:.3f} bits per weight",
                                      options.bits ? fmt::format("{} bits", *options.bits) : fmt::format("{} bytes", *options.bytes), least,
                                      bits_of(least, weights)));
}

/// The menu's scheme in the middle of those that the budget allows: small enough a change for divergences to add up, large enough to see.
std::size_t probe_of(const std::vector<Scheme>& menu, const std::vector<SearchedModule>& modules, std::optional<double> bits) {
  std::vector<double> average(menu.size(), 0.0);
  std::uint64_t weights = 0;
  for (const SearchedModule& module : modules) {
    weights += module.weights;
    for (std::size_t s = 0; s < menu.size(); ++s) average[s] += 8.0 * static_cast<double>(module.bytes[s]);
  }
  const double wanted = bits.value_or(4.5);
  std::size_t best = 0;
  for (std::size_t s = 1; s < menu.size(); ++s)
    if (std::fabs(average[s] / static_cast<double>(weights) - wanted) < std::fabs(average[best] / static_cast<double>(weights) - wanted))
      best = s;
  return best;
}

}  // namespace

const std::vector<Scheme>& default_menu() {
  static const std::vector<Scheme> menu = [] {
    std::vector<Scheme> schemes;
    for (const char* text : {"int3:block64:scale=fp16", "fp4_e2m1:row", "nf4:block128:scale=fp16", "nf4:block64:scale=fp16", "nvfp4",
                             "fp5_e2m2:row", "fp5_e2m2:block64:scale=fp16", "fp6_e2m3:row", "fp7_e2m4:row", "int8:row"})
      schemes.push_back(Scheme::parse(text));
    return schemes;
  }();
  return menu;
}

SearchResult search_schemes(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows,
                            const SearchOptions& options) {
  check(options, windows);
  const Checkpoint input = open_checkpoint(path);
  SearchResult result;
  result.menu = options.menu.empty() ? default_menu() : options.menu;
  result.recipe = options.recipe;
  result.recipe.scheme = result.menu.front();
  result.recipe.rules.clear();
  const Plan plan = plan_quantize(input, result.recipe, path);
  std::uint64_t weights = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.fate != Fate::kQuantize) continue;
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(io::kWeightSuffix))
      throw InvalidArgument(fmt::format("search: {} is no weight of a Linear layer; leave it out", io::in_quotes(tensor.name)));
    SearchedModule module;
    module.module = tensor.name.substr(0, tensor.name.size() - io::kWeightSuffix.size());
    module.weights = static_cast<std::uint64_t>(element_count(tensor.shape));
    for (const Scheme& scheme : result.menu) module.bytes.push_back(quantized_bytes(scheme, tensor.shape));
    weights += module.weights;
    result.modules.push_back(std::move(module));
  }
  if (result.modules.empty()) throw InvalidArgument("search: the recipe quantizes nothing");
  check_budget(options, result.modules, weights);

  CalibrationStatistics seen;
  const CalibrationStatistics* statistics = options.statistics;
  if (statistics == nullptr) {
    observe_inputs(open_model(path), windows, [&](std::span<const std::string> modules, const Tensor& x) { seen.add(modules, x, true); });
    statistics = &seen;
  }
  const std::size_t probe = probe_of(result.menu, result.modules, options.bits);
  std::map<std::string, QuantizedTensor> probes;
  std::size_t done = 0;
  for (SearchedModule& module : result.modules) {
    const Tensor w = input.tensor(module.module + std::string(io::kWeightSuffix));
    for (std::size_t s = 0; s < result.menu.size(); ++s) {
      FittedWeight fitted = fit_weight(w, result.menu[s], statistics->of(module.module).second_moment, options.method);
      module.losses.push_back(fitted.loss_after);
      if (s == probe) probes.emplace(module.module, std::move(fitted.quantized));
    }
    if (options.progress) options.progress(module.module, ++done, 2 * result.modules.size());
  }
  replaced_divergences(
      path, windows.first(std::min(windows.size(), options.probe_windows)), probes, [&](const std::string& name, double divergence) {
        SearchedModule& module =
            *std::find_if(result.modules.begin(), result.modules.end(), [&](const SearchedModule& m) { return m.module == name; });
        module.divergence = divergence;
        for (const double loss : module.losses)
          module.costs.push_back(module.losses[probe] > 0.0 ? divergence * loss / module.losses[probe] : 0.0);
        if (options.progress) options.progress(name, ++done, 2 * result.modules.size());
      });

  std::vector<std::vector<LayerChoice>> layers;
  for (const SearchedModule& module : result.modules) {
    std::vector<LayerChoice>& choices = layers.emplace_back();
    for (std::size_t s = 0; s < result.menu.size(); ++s) choices.push_back({module.bytes[s], module.costs[s]});
  }
  const Knapsack knapsack(std::move(layers));
  for (const Assignment& point : knapsack.curve(kCurvePoints)) result.curve.push_back({bits_of(point.bytes, weights), point.cost});
  const auto take = [&](const std::optional<Assignment>& found, const std::string& budget) {
    if (!found)
      throw InvalidArgument(fmt::format("search: nothing of the menu fits into {}; the smallest takes {} bytes, {:.3f} bits per weight",
                                        budget, knapsack.least_bytes(), bits_of(knapsack.least_bytes(), weights)));
    result.recipe.rules.clear();
    for (std::size_t i = 0; i < result.modules.size(); ++i) {
      result.modules[i].choice = found->choices[i];
      result.recipe.rules.emplace_back(result.modules[i].module + std::string(io::kWeightSuffix), result.menu[found->choices[i]]);
    }
    result.bytes = found->bytes;
    result.bits = bits_of(found->bytes, weights);
    result.divergence = found->cost;
  };
  if (options.bits) {
    take(knapsack.within(static_cast<std::uint64_t>(std::floor(*options.bits * static_cast<double>(weights) / 8.0))),
         fmt::format("{} bits", *options.bits));
  } else if (options.divergence) {
    take(knapsack.below(*options.divergence), fmt::format("a divergence of {}", *options.divergence));
  } else {
    // Headers grow with the names of schemes' parts: what the files have too much comes off the budget.
    for (std::uint64_t budget = *options.bytes;;) {
      take(knapsack.within(budget), fmt::format("{} bytes", *options.bytes));
      const std::uint64_t file_bytes = plan_quantize(input, result.recipe, path).file_bytes;
      if (file_bytes <= *options.bytes) break;
      const std::uint64_t excess = file_bytes - *options.bytes;
      budget = result.bytes > excess ? result.bytes - excess : 0;
    }
  }
  return result;
}

std::string recipe_yaml(const Recipe& recipe) {
  const auto quoted = [](const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
    return result + "'";
  };
  const auto list = [&](const char* key, const std::vector<std::string>& patterns) {
    std::string text = fmt::format("{}: [", key);
    for (std::size_t i = 0; i < patterns.size(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", quoted(patterns[i]));
    return text + "]\n";
  };
  std::string text = fmt::format("scheme: {}\n", quoted(recipe.scheme.to_string()));
  if (!recipe.targets.empty()) text += list("targets", recipe.targets);
  text += list("ignore", recipe.ignore);
  if (!recipe.rules.empty()) text += "rules:\n";
  for (const auto& [pattern, scheme] : recipe.rules)
    text += fmt::format("  - {{match: {}, scheme: {}}}\n", quoted(pattern), quoted(scheme.to_string()));
  return text;
}

}  // namespace narrow
