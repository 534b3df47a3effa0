#include "methods/tune.h"

#include <algorithm>
#include <array>
#include <random>

#include "methods/learned_weight.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

/// Tokens of one step.
constexpr std::size_t kStepTokens = 2048;
/// One window of so many is kept back to judge by, where there are as many.
constexpr std::size_t kKeptBack = 16;
/// Bits of an element beyond which rounding is no loss worth learning.
constexpr int kWidestLearned = 8;
/// Rates of the first step: of codes in distances between codes, of scales and norms in shares of themselves.
constexpr float kCodeRate = 0.02f, kScaleRate = 0.001f, kNormRate = 0.001f;

using Texts = std::vector<std::span<const std::int32_t>>;

QuantizedTensor copy_of(const QuantizedTensor& q) {
  QuantizedTensor copy = q;
  for (Buffer QuantizedTensor::*part : {&QuantizedTensor::codes, &QuantizedTensor::scales, &QuantizedTensor::zero_points}) {
    copy.*part = Buffer::allocate((q.*part).size());
    std::copy_n((q.*part).data(), (q.*part).size(), (copy.*part).data());
  }
  return copy;
}

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

/// All that is learned of a model, by tensor.
class Learned {
 public:
  Learned(LearningModel& model, const std::map<std::string, QuantizedTensor>& weights) : model_(model) {
    for (const auto& [name, weight] : weights) {
      model.replace(name, dequantize(weight));
      if (weight.shape.size() == 2 && weight.scheme.element.bits <= kWidestLearned) weights_.try_emplace(name, copy_of(weight));
    }
    for (const auto& [name, norm] : model.norms()) norms_.try_emplace(name, norm);
  }

  /// One step over a text; `decay`: the share of the rates that is left.
  double follow(const Texts& texts, float decay) {
    ++step_;
    return model_.divergence(texts, [&](const std::string& tensor, const Tensor& gradient) -> std::optional<Tensor> {
      if (const auto norm = norms_.find(tensor); norm != norms_.end()) {
        norm->second.follow(gradient, step_, decay * kNormRate);
        return norm->second.values();
      }
      const auto weight = weights_.find(tensor);
      if (weight == weights_.end()) return std::nullopt;
      weight->second.follow(gradient, step_, decay * kCodeRate, decay * kScaleRate);
      return weight->second.values();
    });
  }

  void copy_to(TunedModel& model) const {
    for (const auto& [name, weight] : weights_) model.weights[name] = copy_of(weight.quantized());
    for (const auto& [name, norm] : norms_) model.norms[name] = norm.values();
  }

  void visit_state(const StateVisitor& visit) {
    for (auto& [name, weight] : weights_) weight.visit_state(name, visit);
    for (auto& [name, norm] : norms_) norm.visit_state(name, visit);
    visit("step", std::as_writable_bytes(std::span(&step_, 1)));
  }
  /// After the state was restored.
  void put_in_place() {
    for (const auto& [name, weight] : weights_) model_.replace(name, weight.values());
    for (const auto& [name, norm] : norms_) model_.replace(name, norm.values());
  }

 private:
  LearningModel& model_;
  std::map<std::string, LearnedWeight> weights_;
  std::map<std::string, LearnedNorm> norms_;
  std::int64_t step_ = 0;
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

/// The mean divergence over all tokens.
double judge(LearningModel& model, const Texts& texts) {
  double sum = 0.0, tokens = 0.0;
  for (const Texts& batch : batches_of(texts)) {
    double count = 0.0;
    for (const auto& text : batch) count += static_cast<double>(text.size());
    sum += model.divergence(batch) * count;
    tokens += count;
  }
  return sum / tokens;
}

constexpr const char* kStep = "tune";

/// What the best pass left.
void visit_best(TunedModel& best, const StateVisitor& visit) {
  for (auto& [name, weight] : best.weights) {
    visit("best." + name + ".codes", {weight.codes.data(), weight.codes.size()});
    if (weight.scales.size() > 0) visit("best." + name + ".scales", {weight.scales.data(), weight.scales.size()});
  }
  for (auto& [name, norm] : best.norms) visit("best." + name, {norm.data(), norm.byte_size()});
}

/// The state after a pass.
void save(const Journal& journal, int pass, Learned& learned, TunedModel& best) {
  if (!journal.is_kept_on_disk()) return;
  std::map<std::string, Tensor> state;
  const StateVisitor add = [&](const std::string& name, std::span<std::byte> bytes) {
    state.emplace(name, Tensor::borrow(static_cast<const void*>(bytes.data()), DType::kU8, {static_cast<std::int64_t>(bytes.size())}));
  };
  learned.visit_state(add);
  visit_best(best, add);
  const std::array<double, 4> numbers{static_cast<double>(pass), best.report.divergence_before, best.report.divergence_after,
                                      static_cast<double>(best.report.best_pass)};
  state.emplace("numbers", Tensor::borrow(static_cast<const void*>(numbers.data()), DType::kF64, {4}));
  journal.keep(kStep, state);
}

/// The last pass that the journal has, its state in place; 0: none.
int restore(const Journal& journal, Learned& learned, TunedModel& best) {
  const std::optional<Checkpoint> state = journal.kept(kStep);
  if (!state) return 0;
  const StateVisitor take = [&](const std::string& name, std::span<std::byte> bytes) {
    const Tensor from = state->tensor(name);
    if (from.byte_size() != bytes.size()) throw CorruptFile("the journal has the state of another model; remove it");
    std::copy_n(from.data(), bytes.size(), bytes.data());
  };
  learned.visit_state(take);
  learned.put_in_place();
  visit_best(best, take);
  const Tensor numbers = state->tensor("numbers");
  const double* n = numbers.as<double>();
  best.report = {n[1], n[2], static_cast<int>(n[3])};
  return static_cast<int>(n[0]);
}

}  // namespace

TunedModel tune(const std::filesystem::path& path, std::map<std::string, QuantizedTensor> weights,
                std::span<const std::vector<std::int32_t>> windows, int passes, const Journal& journal, const TuneCallback& callback) {
  Texts text, judged;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].empty()) continue;
    (windows.size() >= kKeptBack && i % kKeptBack == kKeptBack - 1 ? judged : text).push_back(windows[i]);
  }
  if (judged.empty()) judged = text;
  LearningModel model(path);
  Learned learned(model, weights);
  TunedModel best;
  best.weights = std::move(weights);
  learned.copy_to(best);
  const int done = restore(journal, learned, best);
  if (done == 0) best.report.divergence_before = best.report.divergence_after = judge(model, judged);
  for (int pass = done + 1; pass <= passes; ++pass) {
    const std::vector<Texts> batches = batches_of(shuffled(text, pass));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const double share = (pass - 1 + static_cast<double>(i) / static_cast<double>(batches.size())) / passes;
      const double divergence = learned.follow(batches[i], static_cast<float>(1.0 - share));
      if (callback) callback({pass, share, divergence});
    }
    const double after = judge(model, judged);
    if (after < best.report.divergence_after) {
      learned.copy_to(best);
      best.report.divergence_after = after;
      best.report.best_pass = pass;
    }
    save(journal, pass, learned, best);
  }
  return best;
}

}  // namespace narrow
