// Learned rounding through the whole model: what it learns, what it keeps, what it refuses.
#include "methods/tune.h"

#include <omp.h>

#include "methods/learned_weight.h"
#include "model/small_model.h"
#include "narrow/error.h"
#include "narrow/evaluate.h"
#include "narrow/search.h"
#include "narrow/shards.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

std::vector<std::vector<std::int32_t>> text(std::size_t windows) {
  std::vector<std::vector<std::int32_t>> result;
  for (std::size_t i = 0; i < windows; ++i) result.push_back(test::random_tokens(20 + i % 3, 96, static_cast<unsigned>(i + 1)));
  return result;
}

bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  const auto equal = [](const Buffer& x, const Buffer& y) {
    return std::equal(x.bytes().begin(), x.bytes().end(), y.bytes().begin(), y.bytes().end());
  };
  return equal(a.codes, b.codes) && equal(a.scales, b.scales) && equal(a.zero_points, b.zero_points) && a.outer_scale == b.outer_scale;
}

TEST(LearnedWeight, StartsWhereItIsAndMovesAgainstTheGradient) {
  const Tensor w = test::random_values(DType::kF32, {6, 128}, 1, 0.1f), gradient = test::random_values(DType::kF32, {6, 128}, 2, 1.0f);
  for (const Scheme& scheme : standard_schemes()) {
    const QuantizedTensor q = quantize(w, scheme);
    LearnedWeight still(quantize(w, scheme)), moving(quantize(w, scheme));
    still.follow(gradient, 1, 0.0f, 0.0f);
    EXPECT_EQ(compare(still.values(), dequantize(q)).max_absolute, 0.0) << scheme.to_string();
    for (int step = 1; step <= 8; ++step) moving.follow(gradient, step, 0.2f, 0.0f);
    const Tensor before = dequantize(q), after = moving.values();
    double along = 0.0;
    for (std::int64_t i = 0; i < w.size(); ++i) {
      const double step = static_cast<double>(after.as<float>()[i]) - static_cast<double>(before.as<float>()[i]);
      EXPECT_LE(step * static_cast<double>(gradient.as<float>()[i]), 0.0) << scheme.to_string() << " element " << i;
      along += step * static_cast<double>(gradient.as<float>()[i]);
    }
    EXPECT_LT(along, 0.0) << scheme.to_string();
  }
}

TEST(LearnedWeight, ScalesMoveAsFarAsTheyCanBeStored) {
  const Tensor w = test::random_values(DType::kF32, {6, 128}, 1, 0.1f);
  for (const char* name : {"int4:row", "int3:block64:asym", "fp4_e2m1:block64:scale=fp16", "int4:tensor", "int8:128x128"}) {
    LearnedWeight weight(quantize(w, Scheme::parse(name)));
    const Tensor before = weight.values();
    for (int step = 1; step <= 5; ++step) weight.follow(weight.values(), step, 0.0f, 0.01f);  // against its own values: it shrinks
    const Tensor after = weight.values();
    for (std::int64_t i = 0; i < w.size(); ++i)
      EXPECT_NEAR(after.as<float>()[i], 0.951f * before.as<float>()[i], 2e-3f * std::fabs(before.as<float>()[i])) << name;
  }
}

TEST(Tune, LowersTheDivergenceOfWhatIsWritten) {
  const test::TemporaryDirectory directory;
  const fs::path plain = directory.path() / "plain";
  test::write_decoder(plain, {.type = "qwen3"});
  const auto windows = text(12);
  const Model base = open_model(plain);
  for (const char* scheme : {"int3:row", "int4:block64:asym", "fp4_e2m1:row", "nvfp4", "msfp12"}) {
    const fs::path place = directory.path() / scheme;
    Recipe recipe;
    recipe.scheme = Scheme::parse(scheme);
    const MethodReport report = quantize_checkpoint(plain, place, recipe, {.tune = true, .passes = 40}, {.windows = windows});
    ASSERT_TRUE(report.tuned);
    EXPECT_LT(report.tuned->divergence_after, 0.95 * report.tuned->divergence_before) << scheme;
    EXPECT_GT(report.tuned->best_pass, 0) << scheme;
    // Fewer than 16 windows: the text that it learned from is what it is judged by. The file answers as it was judged.
    double sum = 0.0, rows = 0.0;
    const Model written = open_model(place);
    for (const auto& window : windows) {
      KvCache own = written.make_cache(), theirs = base.make_cache();
      const Sequence sequence{window, &own}, same_sequence{window, &theirs};
      const Tensor logits = written.forward({&sequence, 1}), target = base.forward({&same_sequence, 1});
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(window.size()); ++row) {
        const float *x = logits.as<float>() + row * 96, *y = target.as<float>() + row * 96;
        double x_sum = 0.0, y_sum = 0.0, divergence = 0.0;
        for (int i = 0; i < 96; ++i) {
          x_sum += std::exp(static_cast<double>(x[i]));
          y_sum += std::exp(static_cast<double>(y[i]));
        }
        for (int i = 0; i < 96; ++i)
          divergence += std::exp(static_cast<double>(y[i])) / y_sum *
                        (static_cast<double>(y[i]) - std::log(y_sum) - static_cast<double>(x[i]) + std::log(x_sum));
        sum += divergence;
        rows += 1.0;
      }
    }
    EXPECT_NEAR(sum / rows, report.tuned->divergence_after, 1e-4 * report.tuned->divergence_after) << scheme;
  }
}

TEST(Tune, NeverEndsWorseThanItStarted) {
  const test::TemporaryDirectory directory;
  const fs::path plain = directory.path() / "plain";
  test::write_decoder(plain, {});
  // Eight bits leave nothing to learn: whole steps of codes make it worse, and the start comes back.
  std::map<std::string, QuantizedTensor> weights;
  const Checkpoint checkpoint = open_checkpoint(plain);
  for (const TensorInfo& info : checkpoint.stored())
    if (info.name.ends_with("_proj.weight")) weights.emplace(info.name, quantize(checkpoint.tensor(info.name), Scheme::parse("int8:row")));
  const auto windows = text(3);
  const TunedModel tuned = tune(plain, weights, windows, 1, Journal({}, ""), {});
  EXPECT_LE(tuned.report.divergence_after, tuned.report.divergence_before);
  if (tuned.report.best_pass == 0) {
    for (const auto& [name, weight] : weights) EXPECT_TRUE(same(weight, tuned.weights.at(name))) << name;
  }
  EXPECT_EQ(tuned.weights.size(), weights.size());
}

TEST(Tune, SameBytesForAnyNumberOfThreadsAndAfterAKill) {
  const test::TemporaryDirectory directory;
  const fs::path plain = directory.path() / "plain";
  test::write_decoder(plain, {});
  const auto windows = text(17);
  Recipe recipe;
  recipe.scheme = Scheme::parse("int3:block64");
  const Method method = Method::parse("gptq+clip+tune");
  const int threads = omp_get_max_threads();
  std::string first;
  for (const int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    const fs::path place = directory.path() / std::to_string(count);
    MethodRun run{.journal = directory.path() / "journal"};
    int first_pass = 1;
    if (count > 1) {  // stopped in the middle of a pass, and started again
      run.tuned = [&](const TuneProgress& progress) {
        if (progress.pass == count) throw IoError("stopped");
      };
      EXPECT_THROW(quantize_checkpoint(plain, place, recipe, method, {.windows = windows}, run), IoError);
      run.tuned = [&](const TuneProgress& progress) { first_pass = first_pass == 1 ? progress.pass : first_pass; };
    }
    quantize_checkpoint(plain, place, recipe, method, {.windows = windows}, run);
    EXPECT_EQ(first_pass, count);  // whole passes are not computed again
    const std::string bytes = test::read_bytes(place / "model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << count;
  }
  omp_set_num_threads(threads);
}

TEST(Tune, RefusesWhatItCannotDo) {
  const test::TemporaryDirectory directory;
  const fs::path plain = directory.path() / "plain", place = directory.path() / "out";
  test::write_decoder(plain, {});
  Recipe recipe;
  recipe.scheme = Scheme::parse("int4:row");
  const Method method = Method::parse("gptq+tune");
  EXPECT_EQ(method.to_string(), "gptq+tune");
  const auto refused = [&](const std::function<void()>& call, std::string_view named) {
    try {
      call();
      ADD_FAILURE() << "not refused: " << named;
    } catch (const Error& error) {
      test::expect_sentence(error.what(), named);
    }
  };
  refused([&] { quantize_checkpoint(plain, place, recipe, method, {}); }, "needs a text");
  const auto windows = text(2);
  const CalibrationStatistics statistics = collect_statistics(open_model(plain), windows, true);
  refused([&] { quantize_checkpoint(plain, place, recipe, method, {.statistics = &statistics}); }, "not statistics");
  refused([&] { quantize_checkpoint(plain, place, recipe, {.tune = true, .passes = 0}, {.windows = windows}); }, "at least one pass");
  refused([&] { fit_weight(test::random_values(DType::kF32, {4, 64}, 1), recipe.scheme, {}, {.tune = true}); }, "whole models");
  SearchOptions search;
  search.bits = 4.5;
  search.method = method;
  refused([&] { search_schemes(plain, windows, search); }, "gptq+tune");
  refused([&] { ShardedQuantize(plain, recipe).check_fit(method, true); }, "on a cluster");
  EXPECT_FALSE(fs::exists(place));
}

}  // namespace
}  // namespace narrow
