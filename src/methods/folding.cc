#include "methods/folding.h"

#include <algorithm>

#include "methods/channel_factors.h"
#include "methods/rotation.h"
#include "narrow/model.h"

namespace narrow {
namespace {

/// Tokens of each input that are kept for searching a strength.
constexpr std::int64_t kSampleTokens = 512;

std::int64_t token_count(std::span<const std::vector<std::int32_t>> windows) {
  std::int64_t tokens = 0;
  for (const auto& window : windows) tokens += static_cast<std::int64_t>(window.size());
  return tokens;
}

/// Every so many tokens of an input, as they come.
class Sample {
 public:
  Sample(std::int64_t step, std::int64_t cols) : step_(step), cols_(cols) {}
  void add(const Tensor& x) {
    for (std::int64_t row = 0; row < x.size() / cols_; ++row, ++seen_)
      if (seen_ % step_ == 0) values_.insert(values_.end(), x.as<float>() + row * cols_, x.as<float>() + (row + 1) * cols_);
  }
  Tensor tensor() const {
    Tensor result = Tensor::empty(DType::kF32, {static_cast<std::int64_t>(values_.size()) / cols_, cols_});
    std::copy(values_.begin(), values_.end(), result.as<float>());
    return result;
  }

 private:
  std::int64_t step_, cols_, seen_ = 0;
  std::vector<float> values_;
};

SeenInputs see(const std::filesystem::path& model, std::span<const std::vector<std::int32_t>> windows, bool second_moments, bool samples) {
  SeenInputs seen;
  std::map<std::string, Sample> kept;
  const std::int64_t step = std::max<std::int64_t>(1, token_count(windows) / kSampleTokens);
  const Model opened = open_model(model);
  for (const WindowRange& chunk : text_chunks(windows)) {
    CalibrationStatistics part;
    const auto text = windows.subspan(chunk.first, chunk.last - chunk.first);
    observe_inputs(opened, text, [&](std::span<const std::string> modules, const Tensor& x) {
      part.add(modules, x, second_moments);
      if (samples) kept.try_emplace(modules.front(), step, x.shape().back()).first->second.add(x);
    });
    seen.statistics.merge(part);
  }
  for (const auto& [module, sample] : kept) seen.samples.emplace(module, sample.tensor());
  return seen;
}

bool lacks_scales(const Recipe& recipe) {
  return recipe.activations && recipe.activations->scales.empty() &&
         (recipe.activations->scheme.is_static || std::any_of(recipe.activations->rules.begin(), recipe.activations->rules.end(),
                                                              [](const auto& rule) { return rule.second && rule.second->is_static; }));
}

}  // namespace

FoldedModel::FoldedModel(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe,
                         const Method& method, const Calibration& calibration)
    : path_(input), recipe_(recipe), windows_(calibration.windows), given_(calibration.statistics) {
  const auto write = [&](const TensorChanges& changes, const Checkpoint& from) {
    scratch_.push_back(std::make_unique<io::AtomicDirectory>(output));
    write_changed(from, scratch_.back()->place(), changes);
    path_ = scratch_.back()->place();
  };
  if (method.rotate) {
    const Checkpoint plain = open_checkpoint(path_);
    write(rotated(plain), plain);
  }
  if (method.smoothquant || method.awq) {
    const Checkpoint plain = open_checkpoint(path_);
    const Plan plan = plan_quantize(plain, recipe_, output);
    SeenInputs seen;
    if (windows_.empty()) {
      seen.statistics = *given_;
    } else {
      seen = see(path_, windows_, method.awq, method.smoothquant && !method.strength);
    }
    const ChannelFactors factors =
        method.awq ? awq_factors(plain, plan, seen) : smooth_factors(plain, recipe_, plan, seen, method.strength);
    write(scaled_channels(plain, factors), plain);
    const std::vector<ChannelLink> links = channel_links(read_matching_config(plain));
    statistics_ = std::make_unique<CalibrationStatistics>(scaled_statistics(seen.statistics, links, factors));
    if (!method.needs_hessian() && !method.tune) windows_ = {};  // clip search needs no more than these
  }
  if (lacks_scales(recipe_) && !calibration.windows.empty())
    set_static_scales(*recipe_.activations, see(path_, calibration.windows, false, false).statistics, calibration.range);
}

}  // namespace narrow
