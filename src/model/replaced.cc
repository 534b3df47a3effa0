/// replaced_divergences: what a model's answers lose by one weight.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "dispatch/attention.h"
#include "io/text.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

model::Linear& find_linear(Model::State& state, const std::string& module) {
  for (model::LayerWeights& layer : state.layers)
    for (model::Linear* linear : layer.linears())
      if (linear->module == module) return *linear;
  throw InvalidArgument(fmt::format("{} is no Linear layer of the decoder", io::in_quotes(module)));
}

std::vector<Tensor> logits_of(const Model& model, std::span<const std::vector<std::int32_t>> windows) {
  std::vector<Tensor> logits;
  KvCache cache = model.make_cache();
  for (const auto& window : windows) {
    cache.truncate(0);
    const Sequence sequence{window, &cache};
    logits.push_back(model.forward({&sequence, 1}));
  }
  return logits;
}

/// The mean of KL(base || other) over all tokens.
double mean_divergence(const std::vector<Tensor>& base, const std::vector<Tensor>& other) {
  const LogitsKernel& kernel = find_logits();
  double sum = 0.0;
  std::int64_t rows = 0;
  for (std::size_t w = 0; w < base.size(); ++w) {
    const std::int64_t vocabulary = base[w].shape().back(), count = base[w].size() / vocabulary;
    std::vector<double> kl(static_cast<std::size_t>(count));
#pragma omp parallel
    {
      const FloatEnvironment environment;
#pragma omp for schedule(static)
      for (std::int64_t i = 0; i < count; ++i) {
        const float *b = base[w].as<float>() + i * vocabulary, *x = other[w].as<float>() + i * vocabulary;
        const LogitSums theirs = kernel.run(b, x, vocabulary), own = kernel.run(x, nullptr, vocabulary);
        kl[static_cast<std::size_t>(i)] = std::max(0.0, theirs.difference - theirs.log_sum + own.log_sum);
      }
    }
    for (const double value : kl) sum += value;
    rows += count;
  }
  return rows > 0 ? sum / static_cast<double>(rows) : 0.0;
}

}  // namespace

void replaced_divergences(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows,
                          const std::map<std::string, QuantizedTensor>& weights,
                          const std::function<void(const std::string& module, double divergence)>& found) {
  const std::shared_ptr<Model::State> state = model::load_state(path, {});
  const Model model(state);
  const std::vector<Tensor> base = logits_of(model, windows);
  for (const auto& [module, weight] : weights) {
    model::Linear& linear = find_linear(*state, module);
    const PreparedWeight own = linear.weight;
    linear.weight = prepare(weight);
    found(module, mean_divergence(base, logits_of(model, windows)));
    linear.weight = own;
  }
}

}  // namespace narrow
