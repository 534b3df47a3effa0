// Perplexity and divergence against their definitions in fp64.
#include "narrow/evaluate.h"

#include <cmath>

#include "model/small_model.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// log softmax of a row, in fp64.
std::vector<double> log_probabilities(const float* row, std::int64_t count) {
  double largest = -HUGE_VAL, sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<double>(row[i]));
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(row[i]) - largest);
  std::vector<double> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(static_cast<double>(row[i]) - largest - std::log(sum));
  return result;
}

TEST(Evaluate, EqualsTheDefinition) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.vocabulary = 101});
  const Model base = open_model(place / "model"),
              model = open_model(place / "model", {.recipe = Recipe{.scheme = Scheme::parse("int4:block32")}});
  const TokenWindows windows{test::random_tokens(30, 101, 1), test::random_tokens(17, 101, 2), test::random_tokens(2, 101, 3)};
  double nll = 0.0, squares = 0.0, kl = 0.0, largest_kl = 0.0, delta = 0.0, delta_squares = 0.0, agree = 0.0, count = 0.0;
  for (const auto& window : windows) {
    KvCache a = model.make_cache(), b = base.make_cache();
    const Sequence x{window, &a}, y{window, &b};
    const Tensor logits = model.forward({&x, 1}), base_logits = base.forward({&y, 1});
    for (std::size_t i = 1; i < window.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i - 1) * 101;
      const auto q = log_probabilities(logits.as<float>() + row, 101), p = log_probabilities(base_logits.as<float>() + row, 101);
      const std::size_t token = static_cast<std::size_t>(window[i]);
      nll -= q[token];
      squares += q[token] * q[token];
      double divergence = 0.0;
      for (std::size_t t = 0; t < p.size(); ++t) divergence += std::exp(p[t]) * (p[t] - q[t]);
      kl += divergence;
      largest_kl = std::max(largest_kl, divergence);
      const double d = std::exp(q[token]) - std::exp(p[token]);
      delta += d;
      delta_squares += d * d;
      agree += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin() ? 1.0 : 0.0;
      count += 1.0;
    }
  }
  for (const std::int64_t batch : {1, 40, 4096}) {
    const Evaluation result = evaluate(model, windows, {.base = &base, .batch_tokens = batch});
    EXPECT_EQ(result.tokens, static_cast<std::int64_t>(count));
    EXPECT_EQ(result.windows, 3);
    EXPECT_NEAR(result.nll, nll / count, 1e-5);
    EXPECT_NEAR(result.perplexity, std::exp(nll / count), 1e-3);
    const double variance = (squares - nll * nll / count) / (count - 1.0);
    EXPECT_NEAR(result.perplexity_stderr, result.perplexity * std::sqrt(variance / count), 1e-3 * result.perplexity);
    ASSERT_TRUE(result.divergence);
    EXPECT_NEAR(result.divergence->kl_mean, kl / count, 1e-5);
    EXPECT_NEAR(result.divergence->kl_max, largest_kl, 1e-4);
    EXPECT_NEAR(result.divergence->delta_p_mean, delta / count, 1e-5);
    EXPECT_NEAR(result.divergence->delta_p_rms, std::sqrt(delta_squares / count), 1e-5);
    EXPECT_NEAR(result.divergence->top1_agreement, agree / count, 0.021);  // a tie may fall either way
    EXPECT_LE(result.divergence->kl_median, result.divergence->kl_90);
    EXPECT_LE(result.divergence->kl_999, result.divergence->kl_max);
  }
}

TEST(Evaluate, AModelIsNoDistanceFromItself) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const Model model = open_model(place / "model");
  const Evaluation result = evaluate(model, {test::random_tokens(20, 96, 1)}, {.base = &model});
  EXPECT_LT(result.divergence->kl_max, 1e-6);
  EXPECT_EQ(result.divergence->top1_agreement, 1.0);
  EXPECT_EQ(result.divergence->delta_p_rms, 0.0);
  EXPECT_EQ(result.divergence->base_perplexity, result.perplexity);
}

TEST(Evaluate, RefusesWhatCannotBeScored) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  test::write_decoder(place / "other", {.vocabulary = 97});
  const Model model = open_model(place / "model"), other = open_model(place / "other");
  EXPECT_THROW(evaluate(model, {}), InvalidArgument);
  EXPECT_THROW(evaluate(model, {{1}}), InvalidArgument);
  EXPECT_THROW(evaluate(model, {{1, 2}}, {.base = &other}), InvalidArgument);
  const Tensor tokens = Tensor::empty(DType::kI32, {2, 3}), floats = Tensor::of({1.0f, 2.0f}, {1, 2});
  for (int i = 0; i < 6; ++i) tokens.as<std::int32_t>()[i] = i - (i == 5 ? 9 : 0);
  write_safetensors(place / "t.safetensors", {{"eval", tokens}, {"floats", floats}});
  EXPECT_THROW(read_token_windows(place / "t.safetensors", "eval"), InvalidArgument);
  EXPECT_THROW(read_token_windows(place / "t.safetensors", "floats"), InvalidArgument);
  EXPECT_THROW(read_token_windows(place / "t.safetensors", "calib"), InvalidArgument);
  tokens.as<std::int32_t>()[5] = 5;
  write_safetensors(place / "t.safetensors", {{"eval", tokens}});
  EXPECT_EQ(read_token_windows(place / "t.safetensors", "eval"), (TokenWindows{{0, 1, 2}, {3, 4, 5}}));
}

}  // namespace
}  // namespace narrow
