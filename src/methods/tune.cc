#include "methods/tune.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "kernels/storage.h"
#include "methods/learned_weight.h"
#include "model/gradient.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using model::DenseHead;
using model::DenseLayer;
using model::DenseLinear;
using model::LayerPass;
using model::WindowBatch;

/// Tokens of one step.
constexpr std::size_t kStepTokens = 2048;
/// One window of so many is kept back to judge by, where there are as many.
constexpr std::size_t kKeptBack = 16;
/// Bits of an element beyond which rounding is no loss worth learning.
constexpr int kWidestLearned = 8;
/// Rates of the first step: of codes in distances between codes, of scales and norms in shares of themselves.
constexpr float kCodeRate = 0.02f, kScaleRate = 0.001f, kNormRate = 0.001f;

using Texts = std::vector<std::span<const std::int32_t>>;

/// The factors of one norm, each of which starts at 1.
class LearnedNorm {
 public:
  explicit LearnedNorm(const Tensor& weight)
      : plain_(weight), factors_(static_cast<std::size_t>(weight.size()), 1.0f), moments_(factors_.size()) {}

  Tensor values() const {
    Tensor result = Tensor::empty(DType::kF32, plain_.shape());
    for (std::int64_t i = 0; i < plain_.size(); ++i) result.as<float>()[i] = plain_.as<float>()[i] * factors_[static_cast<std::size_t>(i)];
    return result;
  }
  void follow(const Tensor& gradient, std::int64_t step, float rate) {
    const Adam::Step of(moments_, step);
    for (std::size_t i = 0; i < factors_.size(); ++i) factors_[i] -= rate * of(i, gradient.as<float>()[i] * plain_.as<float>()[i]);
  }
  void visit_state(const std::string& name, const StateVisitor& visit) {
    visit(name + ".factors", std::as_writable_bytes(std::span(factors_)));
    moments_.visit_state(name + ".factors", visit);
  }

 private:
  Tensor plain_;
  std::vector<float> factors_;
  Adam moments_;
};

/// A decoder with learned parts.
class Student {
 public:
  Student(const Model::State& plain, const std::map<std::string, QuantizedTensor>& weights) : config_(plain.config) {
    constexpr const char* kEmbedding = "model.embed_tokens.weight";
    const auto embedding = weights.find(kEmbedding), head = weights.find(config_.tied_head ? kEmbedding : "lm_head.weight");
    embedding_ = embedding != weights.end() ? dequantize(embedding->second) : convert(plain.embedding, DType::kF32).contiguous();
    for (std::size_t i = 0; i < plain.layers.size(); ++i) {
      const model::LayerWeights& from = plain.layers[i];
      Layer& layer = *layers_.emplace_back(std::make_unique<Layer>(model::dense_layer(plain, i)));
      const std::array<const model::Linear*, 7> linears{&from.q, &from.k, &from.v, &from.o, &from.gate, &from.up, &from.down};
      for (std::size_t j = 0; j < linears.size(); ++j) {
        layer.names[j] = linears[j]->module + ".weight";
        const auto found = weights.find(layer.names[j]);
        if (found == weights.end()) continue;
        DenseLinear& linear = *layer.dense.linears.all()[j];
        linear = DenseLinear(dequantize(found->second), linear.bias);
        if (found->second.scheme.element.bits <= kWidestLearned) layer.learned[j] = std::make_unique<LearnedWeight>(copy_of(found->second));
      }
    }
    head_ = model::dense_head(plain);
    if (head != weights.end()) head_.linear = DenseLinear(dequantize(head->second), head_.linear.bias);
    final_norm_ = std::make_unique<LearnedNorm>(plain.final_norm);
  }

  /// The mean divergence over the rows; with `step` > 0 everything learned then follows its gradient, layer by layer from the end.
  double read(const Texts& texts, const Tensor& answers, std::int64_t step, float decay) {
    const WindowBatch batch(config_, texts);
    Tensor x = embed(texts, batch.rows);
    std::vector<LayerPass> passes;
    for (const auto& layer : layers_) {
      LayerPass pass(config_, layer->dense, batch);
      x = pass.forward(x);
      if (step > 0) passes.push_back(std::move(pass));
    }
    const double rows = static_cast<double>(batch.rows);
    if (step == 0) return model::head_divergence(config_, head_, x, answers, 0.0f, nullptr) / rows;
    model::HeadGradients ends;
    const double divergence = model::head_divergence(config_, head_, x, answers, 1.0f / static_cast<float>(batch.rows), &ends) / rows;
    final_norm_->follow(ends.norm, step, decay * kNormRate);
    head_.norm = final_norm_->values();
    Tensor dx = ends.x;
    for (std::size_t i = layers_.size(); i-- > 0; passes.pop_back()) {
      model::LayerGradients gradients;
      dx = passes.back().backward(dx, gradients);
      layers_[i]->follow(gradients, step, decay);
    }
    return divergence;
  }

  void visit_state(const StateVisitor& visit) {
    for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i]->visit_state(fmt::format("layers.{}", i), visit);
    final_norm_->visit_state("final_norm", visit);
  }
  /// After the state was restored: everything that is made from it.
  void apply_state() {
    for (const auto& layer : layers_) layer->apply_state();
    head_.norm = final_norm_->values();
  }

  void copy_to(TunedModel& model) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = *layers_[i];
      for (std::size_t j = 0; j < layer.names.size(); ++j)
        if (layer.learned[j]) model.weights[layer.names[j]] = copy_of(layer.learned[j]->quantized());
      model.norms[fmt::format("model.layers.{}.input_layernorm.weight", i)] = layer.attention_norm.values();
      model.norms[fmt::format("model.layers.{}.post_attention_layernorm.weight", i)] = layer.mlp_norm.values();
    }
    model.norms["model.norm.weight"] = final_norm_->values();
  }

 private:
  struct Layer {
    explicit Layer(DenseLayer plain) : dense(std::move(plain)), attention_norm(dense.attention_norm), mlp_norm(dense.mlp_norm) {}
    void follow(model::LayerGradients& gradients, std::int64_t step, float decay) {
      for (std::size_t j = 0; j < learned.size(); ++j)
        if (learned[j]) learned[j]->follow(*gradients.weights.all()[j], step, decay * kCodeRate, decay * kScaleRate);
      attention_norm.follow(gradients.attention_norm, step, decay * kNormRate);
      mlp_norm.follow(gradients.mlp_norm, step, decay * kNormRate);
      apply_state();
    }
    void apply_state() {
      for (std::size_t j = 0; j < learned.size(); ++j) {
        if (!learned[j]) continue;
        DenseLinear& linear = *dense.linears.all()[j];
        linear = DenseLinear(learned[j]->values(), linear.bias);
      }
      dense.attention_norm = attention_norm.values();
      dense.mlp_norm = mlp_norm.values();
    }
    void visit_state(const std::string& name, const StateVisitor& visit) {
      for (std::size_t j = 0; j < learned.size(); ++j)
        if (learned[j]) learned[j]->visit_state(names[j], visit);
      attention_norm.visit_state(name + ".attention_norm", visit);
      mlp_norm.visit_state(name + ".mlp_norm", visit);
    }
    DenseLayer dense;
    std::array<std::string, 7> names;
    std::array<std::unique_ptr<LearnedWeight>, 7> learned;  ///< none: the weight is not quantized
    LearnedNorm attention_norm, mlp_norm;
  };

  static QuantizedTensor copy_of(const QuantizedTensor& q) {
    QuantizedTensor copy = q;
    for (Buffer QuantizedTensor::*part : {&QuantizedTensor::codes, &QuantizedTensor::scales, &QuantizedTensor::zero_points}) {
      copy.*part = Buffer::allocate((q.*part).size());
      std::copy_n((q.*part).data(), (q.*part).size(), (copy.*part).data());
    }
    return copy;
  }

  Tensor embed(const Texts& texts, std::int64_t rows) const {
    Tensor x = Tensor::empty(DType::kF32, {rows, config_.hidden});
    float* to = x.as<float>();
    for (const auto& text : texts)
      for (const std::int32_t token : text) to = std::copy_n(embedding_.as<float>() + token * config_.hidden, config_.hidden, to);
    return x;
  }

  const ModelConfig& config_;
  Tensor embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  DenseHead head_;
  std::unique_ptr<LearnedNorm> final_norm_;
};

/// The plain model's logits.
class Teacher {
 public:
  explicit Teacher(std::shared_ptr<const Model::State> state) : model_(std::move(state)) {}
  Tensor read(const Texts& texts) {
    std::vector<Sequence> sequences;
    while (caches_.size() < texts.size()) caches_.push_back(model_.make_cache());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      caches_[i].truncate(0);
      sequences.push_back({texts[i], &caches_[i]});
    }
    return model_.forward(sequences);
  }

 private:
  Model model_;
  std::vector<KvCache> caches_;
};

/// Windows in batches of a step's tokens, in the order given.
std::vector<Texts> batches_of(const Texts& texts) {
  std::vector<Texts> batches;
  std::size_t tokens = 0;
  for (const auto& text : texts) {
    if (batches.empty() || tokens + text.size() > kStepTokens) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(text);
    tokens += text.size();
  }
  return batches;
}

/// The same order everywhere, another one for each pass.
Texts shuffled(Texts texts, int pass) {
  std::mt19937 random(static_cast<unsigned>(pass));
  for (std::size_t i = texts.size(); i > 1; --i) std::swap(texts[i - 1], texts[random() % i]);
  return texts;
}

constexpr const char* kStep = "tune";

Tensor bytes_tensor(std::span<std::byte> bytes) {
  return Tensor::borrow(static_cast<const void*>(bytes.data()), DType::kU8, {static_cast<std::int64_t>(bytes.size())});
}

void restore_bytes(const Tensor& from, std::span<std::byte> to) {
  if (from.byte_size() != to.size()) throw CorruptFile("the journal has the state of another model; remove it");
  std::copy_n(from.data(), to.size(), to.data());
}

/// What the best pass left, by the same names as the state.
void visit_best(TunedModel& best, const StateVisitor& visit) {
  for (auto& [name, weight] : best.weights) {
    visit("best." + name + ".codes", {weight.codes.data(), weight.codes.size()});
    if (weight.scales.size() > 0) visit("best." + name + ".scales", {weight.scales.data(), weight.scales.size()});
  }
  for (auto& [name, norm] : best.norms) visit("best." + name, {norm.data(), norm.byte_size()});
}

/// The state after a pass.
void save(const Journal& journal, int pass, std::int64_t step, Student& student, TunedModel& best) {
  if (!journal.is_kept_on_disk()) return;
  std::map<std::string, Tensor> state;
  const StateVisitor add = [&](const std::string& name, std::span<std::byte> bytes) { state.emplace(name, bytes_tensor(bytes)); };
  student.visit_state(add);
  visit_best(best, add);
  const std::array<double, 5> numbers{static_cast<double>(pass), static_cast<double>(step), best.report.divergence_before,
                                      best.report.divergence_after, static_cast<double>(best.report.best_pass)};
  state.emplace("numbers", Tensor::borrow(static_cast<const void*>(numbers.data()), DType::kF64, {5}));
  journal.keep(kStep, state);
}

/// The last pass that the journal has, its state in place; 0: none.
int restore(const Journal& journal, std::int64_t& step, Student& student, TunedModel& best) {
  const std::optional<Checkpoint> state = journal.kept(kStep);
  if (!state) return 0;
  const StateVisitor take = [&](const std::string& name, std::span<std::byte> bytes) { restore_bytes(state->tensor(name), bytes); };
  student.visit_state(take);
  student.apply_state();
  visit_best(best, take);
  const Tensor numbers = state->tensor("numbers");
  const double* n = numbers.as<double>();
  step = static_cast<std::int64_t>(n[1]);
  best.report = {n[2], n[3], static_cast<int>(n[4])};
  return static_cast<int>(n[0]);
}

}  // namespace

TunedModel tune(const std::filesystem::path& path, std::map<std::string, QuantizedTensor> weights,
                std::span<const std::vector<std::int32_t>> windows, int passes, const Journal& journal, const TuneCallback& callback) {
  Texts learned, judged;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].empty()) continue;
    (windows.size() >= kKeptBack && i % kKeptBack == kKeptBack - 1 ? judged : learned).push_back(windows[i]);
  }
  if (judged.empty()) judged = learned;
  const std::shared_ptr<Model::State> state = model::load_state(path, {});
  Teacher teacher(state);
  Student student(*state, weights);
  const auto judge = [&] {
    double sum = 0.0, tokens = 0.0;
    for (const Texts& batch : batches_of(judged)) {
      double count = 0.0;
      for (const auto& text : batch) count += static_cast<double>(text.size());
      sum += student.read(batch, teacher.read(batch), 0, 0.0f) * count;
      tokens += count;
    }
    return sum / tokens;
  };
  TunedModel best;
  best.weights = std::move(weights);
  student.copy_to(best);
  std::int64_t step = 0;
  const int done = restore(journal, step, student, best);
  if (done == 0) best.report.divergence_before = best.report.divergence_after = judge();
  for (int pass = done + 1; pass <= passes; ++pass) {
    const std::vector<Texts> batches = batches_of(shuffled(learned, pass));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const double share = (pass - 1 + static_cast<double>(i) / static_cast<double>(batches.size())) / passes;
      const double divergence = student.read(batches[i], teacher.read(batches[i]), ++step, static_cast<float>(1.0 - share));
      if (callback) callback({pass, share, divergence});
    }
    const double after = judge();
    if (after < best.report.divergence_after) {
      student.copy_to(best);
      best.report.divergence_after = after;
      best.report.best_pass = pass;
    }
    save(journal, pass, step, student, best);
  }
  return best;
}

}  // namespace narrow
