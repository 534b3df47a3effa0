// Scores of logits on a CUDA device: the sums against their definition, and evaluations that never bring logits home.
#include <cmath>
#include <limits>

#include "device/cuda/runtime.h"
#include "harness.h"
#include "model/cuda/device_score.h"
#include "model/small_model.h"
#include "narrow/evaluate.h"

namespace narrow::cuda::testing {
namespace {

/// fp32 terms, and sums of up to count / 512 of them in fp32.
constexpr double kBound = 1e-5;

TEST(Score, SumsOfRowsAreTheReferences) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const LogitsKernel& reference = logits_kernels().back();
  for (const std::int64_t vocabulary : {1, 2, 31, 511, 513, 4096, 32003, 151936}) {
    SCOPED_TRACE(vocabulary);
    Tensor x = test::random_values(DType::kF32, {7, vocabulary}, 1, 4.0f), y = test::random_values(DType::kF32, {7, vocabulary}, 2, 4.0f);
    for (std::int64_t i = 0; i < vocabulary; ++i) x.as<float>()[3 * vocabulary + i] = 2.5f;  // all equal: the first is the largest
    x.as<float>()[5 * vocabulary + vocabulary / 2] = 300.0f;                                 // all others vanish beside it
    const Tensor device_x = to_device(x, kDevice, stream), device_y = to_device(y, kDevice, stream);
    std::vector<model::LogitRow> rows;
    for (const std::int32_t row : {6, 3, 5, 0, 0}) rows.push_back({row, static_cast<std::int32_t>((row * 37 + 1) % vocabulary)});
    for (const bool with_other : {false, true}) {
      const std::vector<model::RowSums> found = model::sums_on_device(device_x, with_other ? &device_y : nullptr, rows);
      ASSERT_EQ(found.size(), rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const float* row = x.as<float>() + rows[i].row * vocabulary;
        const LogitSums sums = reference.run(row, with_other ? y.as<float>() + rows[i].row * vocabulary : nullptr, vocabulary);
        EXPECT_NEAR(found[i].sums.log_sum, sums.log_sum, kBound) << rows[i].row;
        EXPECT_NEAR(found[i].sums.difference, sums.difference, 10 * kBound) << rows[i].row;
        EXPECT_EQ(found[i].sums.largest, sums.largest) << rows[i].row;
        EXPECT_EQ(found[i].logit, row[rows[i].token]);
      }
    }
  }
}

TEST(Score, NanLogitsGiveNanSums) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  Tensor x = test::random_values(DType::kF32, {2, 1000}, 1, 4.0f);
  x.as<float>()[1500] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<model::RowSums> found =
      model::sums_on_device(to_device(x, kDevice, stream), nullptr, std::vector<model::LogitRow>{{0, 1}, {1, 1}});
  EXPECT_TRUE(std::isfinite(found[0].sums.log_sum));
  EXPECT_TRUE(std::isnan(found[1].sums.log_sum));
}

/// With a callback the logits come to the host and are scored there, of the same passes: all figures agree to the rounding of the sums.
TEST(Score, EvaluationsOfBothPlacesAgree) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.vocabulary = 101});
  const Model base = open_model(place / "model", {.device = kDevice}),
              model = open_model(place / "model", {.device = kDevice, .recipe = Recipe::of("int4:row")});
  const TokenWindows windows{test::random_tokens(90, 101, 1), test::random_tokens(17, 101, 2), test::random_tokens(2, 101, 3)};
  for (const std::int64_t batch : {1, 100, 1000}) {
    SCOPED_TRACE(batch);
    std::int64_t rows = 0;
    const auto count = [&](const Tensor& logits) { rows += logits.shape()[0]; };
    const Evaluation there = evaluate(model, windows, {.base = &base, .batch_tokens = batch}),
                     here = evaluate(model, windows, {.base = &base, .batch_tokens = batch, .logits = count});
    EXPECT_EQ(rows, 109);
    EXPECT_EQ(there.tokens, here.tokens);
    EXPECT_NEAR(there.nll, here.nll, kBound);
    EXPECT_NEAR(there.divergence->base_perplexity, here.divergence->base_perplexity, kBound * here.divergence->base_perplexity);
    EXPECT_NEAR(there.divergence->kl_mean, here.divergence->kl_mean, kBound);
    EXPECT_NEAR(there.divergence->kl_max, here.divergence->kl_max, kBound);
    EXPECT_EQ(there.divergence->top1_agreement, here.divergence->top1_agreement);
    EXPECT_GT(here.divergence->kl_mean, 100 * kBound);  // there is something to be told apart
  }
}

}  // namespace
}  // namespace narrow::cuda::testing
