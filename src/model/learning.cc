/// LearningModel: the backward pass of all layers, the head and the plain model's answers.

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/gradient.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using model::DenseLayer;
using model::DenseLinear;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kFinalNorm = "model.norm.weight";

std::string attention_norm(std::size_t layer) { return fmt::format("model.layers.{}.input_layernorm.weight", layer); }
std::string mlp_norm(std::size_t layer) { return fmt::format("model.layers.{}.post_attention_layernorm.weight", layer); }

}  // namespace

struct LearningModel::State {
  explicit State(const std::filesystem::path& path) : plain(model::load_state(path, {})), teacher(plain), head(model::dense_head(*plain)) {
    embedding = convert(plain->embedding, DType::kF32).contiguous();
    for (std::size_t i = 0; i < plain->layers.size(); ++i) {
      layers.push_back(model::dense_layer(*plain, i));
      const model::LayerWeights& from = plain->layers[i];
      std::vector<std::string>& of_layer = names.emplace_back();
      for (const model::Linear* linear : from.linears()) of_layer.push_back(linear->module + ".weight");
    }
  }

  Tensor answers(std::span<const std::span<const std::int32_t>> windows) {
    while (caches.size() < windows.size()) caches.push_back(teacher.make_cache());
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      caches[i].truncate(0);
      sequences.push_back({windows[i], &caches[i]});
    }
    return teacher.forward(sequences);
  }

  Tensor embed(std::span<const std::span<const std::int32_t>> windows, std::int64_t rows) const {
    const std::int64_t hidden = plain->config.hidden;
    Tensor x = Tensor::empty(DType::kF32, {rows, hidden});
    float* to = x.as<float>();
    for (const auto& window : windows)
      for (const std::int32_t token : window) to = std::copy_n(embedding.as<float>() + token * hidden, hidden, to);
    return x;
  }

  std::shared_ptr<Model::State> plain;
  Model teacher;
  std::vector<KvCache> caches;
  Tensor embedding;
  std::vector<DenseLayer> layers;
  std::vector<std::vector<std::string>> names;  ///< of the layers' weights
  model::DenseHead head;
};

LearningModel::LearningModel(const std::filesystem::path& plain) : state_(std::make_shared<State>(plain)) {}

std::map<std::string, Tensor> LearningModel::norms() const {
  std::map<std::string, Tensor> norms{{kFinalNorm, state_->plain->final_norm}};
  for (std::size_t i = 0; i < state_->layers.size(); ++i) {
    norms.emplace(attention_norm(i), state_->plain->layers[i].attention_norm);
    norms.emplace(mlp_norm(i), state_->plain->layers[i].mlp_norm);
  }
  return norms;
}

void LearningModel::replace(const std::string& tensor, const Tensor& values) {
  State& s = *state_;
  if (tensor == kEmbedding) s.embedding = values;
  if (tensor == (s.plain->config.tied_head ? kEmbedding : kHead)) s.head.linear = DenseLinear(values, s.head.linear.bias);
  if (tensor == kFinalNorm) s.head.norm = values;
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (tensor == attention_norm(i)) s.layers[i].attention_norm = values;
    if (tensor == mlp_norm(i)) s.layers[i].mlp_norm = values;
    for (std::size_t j = 0; j < s.names[i].size(); ++j)
      if (DenseLinear& linear = *s.layers[i].linears.all()[j]; tensor == s.names[i][j]) linear = DenseLinear(values, linear.bias);
  }
}

double LearningModel::divergence(std::span<const std::span<const std::int32_t>> windows, const GradientVisitor& visit) {
  State& s = *state_;
  const ModelConfig& config = s.plain->config;
  const Tensor answers = s.answers(windows);  // refuses tokens that are none
  const model::WindowBatch batch(config, windows);
  Tensor x = s.embed(windows, batch.rows);
  std::vector<model::LayerPass> passes;
  for (const DenseLayer& layer : s.layers) {
    model::LayerPass pass(config, layer, batch);
    x = pass.forward(x);
    if (visit) passes.push_back(std::move(pass));
  }
  const double rows = static_cast<double>(batch.rows);
  if (!visit) return model::head_divergence(config, s.head, x, answers, 0.0f, nullptr) / rows;
  const auto show = [&](const std::string& tensor, const Tensor& gradient) {
    if (const std::optional<Tensor> made = visit(tensor, gradient)) replace(tensor, *made);
  };
  model::HeadGradients ends;
  const double divergence = model::head_divergence(config, s.head, x, answers, 1.0f / static_cast<float>(batch.rows), &ends) / rows;
  show(kFinalNorm, ends.norm);
  for (std::size_t i = s.layers.size(); i-- > 0; passes.pop_back()) {
    model::LayerGradients gradients;
    ends.x = passes.back().backward(ends.x, gradients);
    for (std::size_t j = 0; j < s.names[i].size(); ++j) show(s.names[i][j], *gradients.weights.all()[j]);
    show(attention_norm(i), gradients.attention_norm);
    show(mlp_norm(i), gradients.mlp_norm);
  }
  return divergence;
}

}  // namespace narrow
