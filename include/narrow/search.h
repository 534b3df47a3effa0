#pragma once
/// The search for the best mix: which scheme for which layer, within a budget.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "narrow/methods.h"

namespace narrow {

struct SearchOptions {
  std::vector<Scheme> menu{};  ///< empty: default_menu()
  Method method{};             ///< by which the weights will be quantized; it folds nothing and corrects nothing
  Recipe recipe{};             ///< what is quantized at all; its schemes and rules are replaced
  // The budget: one of these.
  std::optional<double> bits{};                       ///< per quantized weight, scales included
  std::optional<std::uint64_t> bytes{};               ///< of the tensor files
  std::optional<double> divergence{};                 ///< predicted, in nats
  std::size_t probe_windows = 8;                      ///< of the text, for divergences
  const CalibrationStatistics* statistics = nullptr;  ///< of the plain model with second moments; none: the windows are read for them
  std::function<void(const std::string& module, std::size_t done, std::size_t modules)> progress{};
};
const std::vector<Scheme>& default_menu();

/// One module with each scheme of the menu.
struct SearchedModule {
  std::string module;
  std::uint64_t weights = 0;
  double divergence = 0.0;     ///< of the model with this module alone in the menu's probe scheme
  std::vector<double> losses;  ///< relative squared error of the output
  std::vector<double> costs;   ///< predicted divergence: that of the probe, in proportion to the losses
  std::vector<std::uint64_t> bytes;
  std::size_t choice = 0;
};
struct CurvePoint {
  double bits = 0.0;
  double divergence = 0.0;
};
struct SearchResult {
  Recipe recipe;  ///< a rule for every module
  std::vector<Scheme> menu;
  std::vector<SearchedModule> modules;
  double bits = 0.0, divergence = 0.0;  ///< of the choice
  std::uint64_t bytes = 0;              ///< of the quantized weights
  std::vector<CurvePoint> curve;        ///< the best that other budgets give
};

/// Measures what each scheme does to each layer, and finds the assignment with the least predicted divergence within the budget; exact for
/// the sum of the predictions. Throws InvalidArgument where nothing fits.
SearchResult search_schemes(const std::filesystem::path& model, std::span<const std::vector<std::int32_t>> windows,
                            const SearchOptions& options);

/// The recipe as YAML that Recipe::load_yaml reads back.
std::string recipe_yaml(const Recipe& recipe);

}  // namespace narrow
