// The backward pass against finite differences of the forward pass, and the forward pass against the executor's.
#include "model/gradient.h"

#include <omp.h>

#include <cmath>

#include "model/small_model.h"
#include "narrow/model.h"

namespace narrow::model {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr test::Decoder kTiny{
    .hidden = 24, .intermediate = 40, .heads = 4, .kv_heads = 2, .head_dim = 8, .vocabulary = 32, .dtype = DType::kF32};

std::vector<test::Decoder> decoders() {
  test::Decoder llama = kTiny, qwen2 = kTiny, qwen3 = kTiny, mistral = kTiny;
  qwen2.type = "qwen2";
  qwen2.biases = true;
  qwen3.type = "qwen3";
  mistral.type = "mistral";
  mistral.extra = R"("sliding_window": 5,)";
  return {llama, qwen2, qwen3, mistral};
}

/// A model with the tokens of two windows of unlike length.
struct Case {
  explicit Case(const test::Decoder& decoder) {
    test::write_decoder(directory.path() / "model", decoder);
    state = load_state(directory.path() / "model", {});
    texts = {test::random_tokens(11, decoder.vocabulary, 1), test::random_tokens(7, decoder.vocabulary, 2)};
    spans.assign(texts.begin(), texts.end());
  }
  test::TemporaryDirectory directory;
  std::shared_ptr<Model::State> state;
  std::vector<Tokens> texts;
  std::vector<std::span<const std::int32_t>> spans;
};

Tensor copy_of(const Tensor& x) {
  Tensor copy = Tensor::empty(DType::kF32, x.shape());
  std::copy_n(x.as<float>(), x.size(), copy.as<float>());
  return copy;
}

double dot(const Tensor& x, const Tensor& y) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x.as<float>()[i]) * static_cast<double>(y.as<float>()[i]);
  return sum;
}

/// x + factor * direction.
Tensor moved(const Tensor& x, const Tensor& direction, float factor) {
  Tensor result = copy_of(x);
  for (std::int64_t i = 0; i < x.size(); ++i) result.as<float>()[i] += factor * direction.as<float>()[i];
  return result;
}

/// The slope of `loss` along a random direction, by central differences, against the gradient's.
void expect_slope(const Tensor& x, const Tensor& gradient, unsigned seed, const std::function<double(const Tensor&)>& loss,
                  const std::string& what) {
  constexpr float kStep = 4e-3f;
  const Tensor direction = test::random_values(DType::kF32, x.shape(), seed, 0.3f);
  const double measured = (loss(moved(x, direction, kStep)) - loss(moved(x, direction, -kStep))) / (2.0 * static_cast<double>(kStep));
  const double scale = std::sqrt(dot(gradient, gradient) * dot(direction, direction));
  EXPECT_GT(scale, 0.0) << what;
  EXPECT_NEAR(dot(gradient, direction), measured, 2e-3 * scale) << what;
}

TEST(Gradient, OfALayerIsThatOfItsOutput) {
  for (const test::Decoder& decoder : decoders()) {
    const Case c(decoder);
    const ModelConfig& config = c.state->config;
    const WindowBatch batch(config, c.spans);
    const DenseLayer layer = dense_layer(*c.state, 1);
    const Tensor x = test::random_values(DType::kF32, {batch.rows, config.hidden}, 3, 1.0f),
                 weights = test::random_values(DType::kF32, {batch.rows, config.hidden}, 4, 1.0f);  // loss = sum of weights * output
    LayerPass pass(config, layer, batch);
    pass.forward(x);
    LayerGradients gradients;
    const Tensor dx = pass.backward(weights, gradients);
    const auto loss_of = [&](const DenseLayer& changed, const Tensor& from) {
      return dot(weights, LayerPass(config, changed, batch).forward(from));
    };
    expect_slope(
        x, dx, 5, [&](const Tensor& from) { return loss_of(layer, from); }, decoder.type + " x");
    for (Tensor DenseLayer::*norm : {&DenseLayer::attention_norm, &DenseLayer::mlp_norm}) {
      const bool first = norm == &DenseLayer::attention_norm;
      expect_slope(
          layer.*norm, first ? gradients.attention_norm : gradients.mlp_norm, 6,
          [&](const Tensor& values) {
            DenseLayer changed = layer;
            changed.*norm = values;
            return loss_of(changed, x);
          },
          decoder.type + (first ? " attention norm" : " mlp norm"));
    }
    DenseLayer changed = layer;
    for (std::size_t i = 0; i < 7; ++i) {
      DenseLinear& linear = *changed.linears.all()[i];
      const DenseLinear own = linear;
      expect_slope(
          unprepare_dense(own.forward), *gradients.weights.all()[i], 7,
          [&](const Tensor& values) {
            linear = DenseLinear(values, own.bias);
            return loss_of(changed, x);
          },
          decoder.type + " weight " + std::to_string(i));
      linear = own;
    }
  }
}

TEST(Gradient, OfTheHeadIsThatOfTheDivergence) {
  const Case c(kTiny);
  const ModelConfig& config = c.state->config;
  const Tensor x = test::random_values(DType::kF32, {9, config.hidden}, 3, 1.0f),
               plain = test::random_values(DType::kF32, {9, config.vocabulary}, 4, 1.0f);
  const DenseHead head = dense_head(*c.state);
  HeadGradients gradients;
  const double loss = head_divergence(config, head, x, plain, 1.0f, &gradients);
  EXPECT_GT(loss, 0.0);
  EXPECT_EQ(loss, head_divergence(config, head, x, plain, 1.0f, nullptr));
  expect_slope(
      x, gradients.x, 5, [&](const Tensor& from) { return head_divergence(config, head, from, plain, 1.0f, nullptr); }, "x");
  expect_slope(
      head.norm, gradients.norm, 6,
      [&](const Tensor& norm) {
        return head_divergence(config, DenseHead{norm, head.linear}, x, plain, 1.0f, nullptr);
      },
      "norm");
}

/// The stream behind the last layer.
Tensor stream_of(const Case& c) {
  const ModelConfig& config = c.state->config;
  const WindowBatch batch(config, c.spans);
  Tensor x = Tensor::empty(DType::kF32, {batch.rows, config.hidden});
  std::int64_t row = 0;
  for (const Tokens& text : c.texts)
    for (const std::int32_t token : text)
      std::copy_n(c.state->embedding.as<float>() + token * config.hidden, config.hidden, x.as<float>() + row++ * config.hidden);
  for (std::size_t i = 0; i < c.state->layers.size(); ++i) x = LayerPass(config, dense_layer(*c.state, i), batch).forward(x);
  return x;
}

TEST(Gradient, ForwardIsTheExecutors) {
  for (const test::Decoder& decoder : decoders()) {
    const Case c(decoder);
    const Model model(c.state);
    std::vector<KvCache> caches;
    for (int i = 0; i < 2; ++i) caches.push_back(model.make_cache());
    const std::vector<Sequence> sequences{{c.texts[0], &caches[0]}, {c.texts[1], &caches[1]}};
    const Tensor logits = model.forward(sequences);
    // No divergence from its own answers: they are the same but for rounding.
    EXPECT_LT(head_divergence(c.state->config, dense_head(*c.state), stream_of(c), logits, 1.0f, nullptr), 1e-6) << decoder.type;
  }
}

TEST(Gradient, SameBitsForAnyNumberOfThreads) {
  const Case c(kTiny);
  const ModelConfig& config = c.state->config;
  const WindowBatch batch(config, c.spans);
  const DenseLayer layer = dense_layer(*c.state, 0);
  const Tensor x = test::random_values(DType::kF32, {batch.rows, config.hidden}, 3, 1.0f);
  const int threads = omp_get_max_threads();
  std::vector<Tensor> first;
  for (const int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    LayerPass pass(config, layer, batch);
    LayerGradients gradients;
    std::vector<Tensor> all{pass.forward(x)};
    all.push_back(pass.backward(x, gradients));
    for (const Tensor* gradient : gradients.weights.all()) all.push_back(*gradient);
    all.push_back(gradients.attention_norm);
    all.push_back(gradients.mlp_norm);
    if (first.empty()) first = all;
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(std::equal(all[i].as<float>(), all[i].as<float>() + all[i].size(), first[i].as<float>())) << i << " with " << count;
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace narrow::model
