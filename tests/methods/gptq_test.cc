// GPTQ and clip search: against rounding, for every scheme, through whole checkpoints, and what they refuse.
#include "methods/gptq.h"

#include <omp.h>

#include <cmath>

#include "io/files.h"
#include "methods/second_moments.h"
#include "model/small_model.h"
#include "narrow/error.h"
#include "narrow/methods.h"
#include "narrow/model.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  const auto equal = [](const Buffer& x, const Buffer& y) {
    return std::equal(x.bytes().begin(), x.bytes().end(), y.bytes().begin(), y.bytes().end());
  };
  return equal(a.codes, b.codes) && equal(a.scales, b.scales) && equal(a.zero_points, b.zero_points) && a.outer_scale == b.outer_scale;
}

std::vector<double> correlated_moment(std::int64_t tokens, std::int64_t k) { return test::moment_of(test::correlated_inputs(tokens, k)); }

TEST(Gptq, IdentityHessianRoundsToNearest) {
  const Tensor w = test::random_values(DType::kF32, {48, 200}, 1, 0.1f);
  for (const Scheme& scheme : standard_schemes()) {
    const FittedWeight fitted = fit_weight(w, scheme, test::identity(200), {.gptq = true});
    EXPECT_TRUE(same(fitted.quantized, quantize(w, scheme))) << scheme.to_string();
    EXPECT_EQ(fitted.loss_before, fitted.loss_after) << scheme.to_string();
    EXPECT_TRUE(same(fit_weight(w, scheme, test::identity(200), {.gptq = true, .act_order = true}).quantized, quantize(w, scheme)))
        << scheme.to_string();
  }
}

TEST(Gptq, LossFallsForNarrowSchemes) {
  const Tensor w = test::random_values(DType::kF32, {64, 256}, 2, 0.1f);
  const std::vector<double> moment = correlated_moment(2000, 256);
  for (const char* name : {"int4:block128", "int4:row", "int3:block64", "int4:block100:asym", "fp4_e2m1:row", "fp3_e2m0:row",
                           "fp5_e2m2:row", "nvfp4", "msfp12", "int4:tensor", "int8:128x128", "int4:block192", "nf4:block64"}) {
    const Scheme scheme = Scheme::parse(name);
    for (const bool act_order : {false, true}) {
      const FittedWeight fitted = fit_weight(w, scheme, moment, {.gptq = true, .act_order = act_order});
      EXPECT_TRUE(fitted.fallback.empty()) << name;
      EXPECT_LT(fitted.loss_after, 0.8 * fitted.loss_before) << name << " act_order " << act_order;
      EXPECT_GT(fitted.loss_after, 0.0) << name;
    }
  }
}

TEST(Gptq, ScalesAreThoseOfTheWeightUnlessSearched) {
  const Tensor w = test::random_values(DType::kF32, {16, 256}, 9, 0.1f);
  const std::vector<double> moment = correlated_moment(600, 256);
  for (const char* name : {"int4:block128", "int3:block64", "nvfp4", "msfp12"}) {
    const Scheme scheme = Scheme::parse(name);
    const auto scales_of = [&](const Method& method) {
      const QuantizedTensor made = fit_weight(w, scheme, moment, method).quantized;
      return std::vector<std::byte>(made.scales.bytes().begin(), made.scales.bytes().end());
    };
    EXPECT_EQ(scales_of({.gptq = true}), scales_of({})) << name;
    EXPECT_NE(scales_of({.gptq = true, .clip = true}), scales_of({})) << name;
  }
}

TEST(Gptq, ClipSearchLowersTheWeightedError) {
  Tensor w = test::random_values(DType::kF32, {64, 256}, 3, 0.1f);
  for (std::int64_t row = 0; row < 64; ++row) w.as<float>()[row * 256 + row] = 0.9f;  // an outlier for each row's scale
  for (const char* name :
       {"int4:row", "int3:block64", "int4:block128:asym", "fp4_e2m1:row", "nvfp4", "msfp12", "int4:tensor", "int1:row"}) {
    const Scheme scheme = Scheme::parse(name);
    const QuantizedTensor clipped = fit_weight(w, scheme, {}, {.clip = true}).quantized;
    EXPECT_LE(compare(w, dequantize(clipped)).rms, compare(w, dequantize(quantize(w, scheme))).rms) << name;
    const FittedWeight weighted = fit_weight(w, scheme, test::identity(256), {.clip = true});
    EXPECT_LE(weighted.loss_after, weighted.loss_before) << name;
  }
  EXPECT_LT(fit_weight(w, Scheme::parse("int3:row"), test::identity(256), {.clip = true}).loss_after,
            0.7 * fit_weight(w, Scheme::parse("int3:row"), test::identity(256), {.clip = true}).loss_before);
}

TEST(Gptq, ClipSearchUnderGptqLowersTheLoss) {
  const Tensor w = test::random_values(DType::kF32, {24, 192}, 3, 0.1f);
  const std::vector<double> moment = correlated_moment(800, 192);
  for (const char* name : {"int3:row", "int3:block64", "int4:block128:asym", "fp3_e2m0:row", "nvfp4", "msfp12"})
    for (const bool act_order : {false, true}) {
      const Scheme scheme = Scheme::parse(name);
      const double plain = fit_weight(w, scheme, moment, {.gptq = true, .act_order = act_order}).loss_after;
      const double clipped = fit_weight(w, scheme, moment, {.gptq = true, .clip = true, .act_order = act_order}).loss_after;
      EXPECT_LT(clipped, 1.01 * plain) << name << " act_order " << act_order;
      if (scheme.element.bits == 3) {
        EXPECT_LT(clipped, 0.9 * plain) << name << " act_order " << act_order;
      }
    }
}

TEST(Refine, LowersTheLossOfEveryScheme) {
  const Tensor w = test::random_values(DType::kF32, {12, 136}, 8, 0.1f);
  const std::vector<double> moment = correlated_moment(600, 136);
  for (const Scheme& scheme : standard_schemes()) {
    const FittedWeight rounded = fit_weight(w, scheme, moment, {.refine = true, .damping = 0.0});
    EXPECT_LE(rounded.loss_after, (1.0 + 1e-4) * rounded.loss_before) << scheme.to_string();
    const double plain = fit_weight(w, scheme, moment, {.gptq = true, .damping = 0.0}).loss_after;
    const double refined = fit_weight(w, scheme, moment, {.gptq = true, .refine = true, .damping = 0.0}).loss_after;
    EXPECT_LE(refined, (1.0 + 1e-4) * plain) << scheme.to_string();
    if (scheme.element.bits <= 4 && scheme.element.bits > 1) {
      EXPECT_LT(refined, plain) << scheme.to_string();
    }
  }
}

TEST(Refine, EndsWhereNoSingleCodeHelps) {
  // Two columns with the same input: only the sum of their weights counts, so the errors of both cancel.
  const Tensor w = Tensor::of({0.5f, 0.5f, 7.0f}, {1, 3});
  const std::vector<double> moment{1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0};
  const FittedWeight made = fit_weight(w, Scheme::parse("int4:row"), moment, {.refine = true, .damping = 0.0});
  const Tensor q = dequantize(made.quantized);
  EXPECT_NEAR(q.as<float>()[0] + q.as<float>()[1], 1.0f, 1e-3f);
  EXPECT_GT(made.loss_before, 0.01);
  EXPECT_LT(made.loss_after, 1e-6);
}

TEST(Gptq, SameBitsForAnyNumberOfThreads) {
  const Tensor w = test::random_values(DType::kF32, {20, 200}, 4, 0.1f);
  const int threads = omp_get_max_threads();
  for (const char* name : {"int4:block128", "nvfp4", "fp4_e2m1:row"}) {
    std::vector<QuantizedTensor> made;
    for (const int count : {1, 2, 5}) {
      omp_set_num_threads(count);
      made.push_back(
          fit_weight(w, Scheme::parse(name), correlated_moment(600, 200), {.gptq = true, .clip = true, .refine = true}).quantized);
    }
    omp_set_num_threads(threads);
    EXPECT_TRUE(same(made[0], made[1]) && same(made[0], made[2])) << name;
  }
}

TEST(Gptq, DeadColumnsAreRoundedAndCounted) {
  const Tensor w = test::random_values(DType::kF32, {16, 64}, 5, 0.1f);
  std::vector<double> moment = correlated_moment(500, 64);
  for (std::size_t i = 0; i < 64; ++i) moment[i * 64 + 10] = moment[10 * 64 + i] = 0.0;
  const FittedWeight fitted = fit_weight(w, Scheme::parse("int4:tensor"), moment, {.gptq = true});
  EXPECT_EQ(fitted.dead_columns, 1);
  const Tensor made = dequantize(fitted.quantized), rounded = dequantize(quantize(w, Scheme::parse("int4:tensor")));
  for (std::int64_t row = 0; row < 16; ++row) EXPECT_EQ(made.as<float>()[row * 64 + 10], rounded.as<float>()[row * 64 + 10]);
}

TEST(Gptq, AddsDampingUntilTheHessianCanBeFactored) {
  const Tensor w = test::random_values(DType::kF32, {8, 32}, 6, 0.1f);
  std::vector<double> moment = test::identity(32);
  moment[33] = -0.05;  // one negative eigenvalue that a damping of 0.1 lifts
  const FittedWeight lifted = fit_weight(w, Scheme::parse("int4:row"), moment, {.gptq = true});
  EXPECT_TRUE(lifted.fallback.empty());
  EXPECT_NEAR(lifted.damping, 0.1, 1e-12);
}

TEST(Gptq, FallsBackToRoundingByName) {
  const Tensor w = test::random_values(DType::kF32, {8, 32}, 6, 0.1f);
  std::vector<double> moment = test::identity(32);
  moment[33] = -50.0;
  const FittedWeight indefinite = fit_weight(w, Scheme::parse("int4:row"), moment, {.gptq = true});
  EXPECT_EQ(indefinite.fallback, "the Hessian is not positive definite");
  EXPECT_TRUE(same(indefinite.quantized, quantize(w, Scheme::parse("int4:row"))));
  moment[33] = NAN;
  EXPECT_FALSE(fit_weight(w, Scheme::parse("int4:row"), moment, {.gptq = true}).fallback.empty());
}

class GptqCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    test::write_decoder(place_ / "in", {});
    for (unsigned seed = 0; seed < 8; ++seed) windows_.push_back(test::random_tokens(48, 96, seed));
  }
  std::string message(const Recipe& recipe, const Method& method, const Calibration& calibration) {
    try {
      quantize_checkpoint(place_ / "in", place_ / "refused", recipe, method, calibration,
                          {.fitted = [&](const FittedModule&, std::size_t, std::size_t) { ADD_FAILURE() << "computed"; }});
    } catch (const InvalidArgument& error) {
      EXPECT_FALSE(fs::exists(place_ / "refused"));
      return error.what();
    }
    return "accepted";
  }
  test::TemporaryDirectory place_;
  std::vector<std::vector<std::int32_t>> windows_;
};

TEST_F(GptqCheckpoint, WritesWhatWasFittedForAnyNumberOfThreads) {
  const Recipe recipe = Recipe::of("int4:block32");
  const int threads = omp_get_max_threads();
  std::vector<std::string> files;
  for (const int count : {1, 2}) {
    omp_set_num_threads(count);
    const fs::path out = place_ / ("out" + std::to_string(count));
    const MethodReport report = quantize_checkpoint(place_ / "in", out, recipe, {.gptq = true, .clip = true}, {.windows = windows_});
    EXPECT_EQ(report.modules.size(), 14u);
    EXPECT_EQ(report.fallbacks, 0);
    EXPECT_EQ(report.modules.front().module, "model.layers.0.self_attn.q_proj");
    EXPECT_EQ(report.modules.back().module, "model.layers.1.mlp.down_proj");
    for (const FittedModule& module : report.modules) EXPECT_LT(module.loss_after, module.loss_before) << module.module;
    EXPECT_TRUE(verify_checkpoint(out).problems.empty());
    files.push_back(test::read_bytes(out / "model.safetensors"));
  }
  omp_set_num_threads(threads);
  EXPECT_TRUE(files[0] == files[1]);
}

TEST_F(GptqCheckpoint, SpilledInputsGiveTheSameBytesAndLeaveNoFiles) {
  const Recipe recipe = Recipe::of("int4:block32");
  const Method method = Method::parse("correct+gptq");
  const fs::path spill = place_ / "spill";
  EXPECT_THROW(quantize_checkpoint(place_ / "in", place_ / "out", recipe, method, {.windows = windows_}, {.spill = spill}), IoError);
  fs::create_directory(spill);
  quantize_checkpoint(place_ / "in", place_ / "spilled", recipe, method, {.windows = windows_}, {.spill = spill});
  quantize_checkpoint(place_ / "in", place_ / "held", recipe, method, {.windows = windows_});
  EXPECT_TRUE(fs::is_empty(spill));
  EXPECT_TRUE(test::read_bytes(place_ / "spilled" / "model.safetensors") == test::read_bytes(place_ / "held" / "model.safetensors"));
  walk_layers(
      place_ / "in", windows_, false,
      [&](const LayerInputs& layer) {
        const Tensor& x = layer.inputs.front();
        const std::vector<float> before(x.as<float>(), x.as<float>() + x.size());
        layer.read(x);  // out of memory, and back from the file
        EXPECT_TRUE(std::equal(before.begin(), before.end(), x.as<float>())) << layer.modules.front();
        return std::map<std::string, QuantizedTensor>{};
      },
      spill);
}

TEST_F(GptqCheckpoint, InputsComeFromQuantizedWeights) {
  // The first group's second moment gives the same codes alone; the next input differs from the plain model's.
  std::map<std::string, std::vector<float>> plain, replaced;
  const auto first_value = [](std::span<const Tensor> inputs) {
    return std::vector<float>(inputs[0].as<float>(), inputs[0].as<float>() + 64);
  };
  const Checkpoint source = open_checkpoint(place_ / "in");
  for (const bool quantized : {false, true})
    walk_layers(place_ / "in", windows_, false, [&](const LayerInputs& layer) {
      (quantized ? replaced : plain)[layer.modules.front()] = first_value(layer.inputs);
      std::map<std::string, QuantizedTensor> result;
      if (quantized)
        for (const std::string& module : layer.modules)
          result.emplace(module, quantize(source.tensor(module + ".weight"), Scheme::parse("int2:row")));
      return result;
    });
  ASSERT_EQ(plain.size(), 8u);
  EXPECT_EQ(plain.at("model.layers.0.self_attn.q_proj"), replaced.at("model.layers.0.self_attn.q_proj"));
  EXPECT_NE(plain.at("model.layers.0.self_attn.o_proj"), replaced.at("model.layers.0.self_attn.o_proj"));
  // And the plain walk sees what forward sees.
  const Model model = open_model(place_ / "in");
  KvCache cache = model.make_cache();
  const std::vector<Sequence> sequence{{windows_[0], &cache}};
  model.forward(sequence, Logits::kLast, [&](std::span<const std::string> modules, const Tensor& x) {
    EXPECT_EQ(plain.at(modules.front()), std::vector<float>(x.as<float>(), x.as<float>() + 64)) << modules.front();
  });
}

TEST_F(GptqCheckpoint, TensorsWithoutAnInputAreRoundedAndCounted) {
  Recipe recipe = Recipe::of("int4:block32");
  recipe.ignore = {"none"};
  const MethodReport report = quantize_checkpoint(place_ / "in", place_ / "out", recipe, {.gptq = true}, {.windows = windows_});
  EXPECT_EQ(report.fallbacks, 1);
  EXPECT_EQ(report.modules.back().module, "lm_head");
  EXPECT_EQ(report.modules.back().fallback, "its input was not seen");
  const Checkpoint source = open_checkpoint(place_ / "in"), made = open_checkpoint(place_ / "out");
  EXPECT_TRUE(same(made.quantized("lm_head.weight"), quantize(source.tensor("lm_head.weight"), recipe.scheme)));
}

TEST_F(GptqCheckpoint, WrongUseFailsBeforeAnyComputation) {
  const Recipe recipe = Recipe::of("int4:block32");
  const Calibration text{.windows = windows_};
  EXPECT_THAT(message(recipe, {.gptq = true}, {}), testing::HasSubstr("gptq needs a text to calibrate with"));
  EXPECT_THAT(message(recipe, {.refine = true}, {}), testing::HasSubstr("refine needs a text to calibrate with"));
  EXPECT_THAT(message(recipe, {.gptq = true, .damping = -1.0}, text), testing::HasSubstr("damping -1 is not between 0 and 1"));
  EXPECT_THAT(message(recipe, {.clip = true, .act_order = true}, text), testing::HasSubstr("the method is clip"));
  Recipe stochastic = recipe;
  stochastic.options.rounding = Rounding::kStochastic;
  EXPECT_THAT(message(stochastic, {.gptq = true}, text), testing::HasSubstr("rounds to nearest even"));
  const std::vector<std::vector<std::int32_t>> foreign{{1, 2, 4000}};
  EXPECT_THAT(message(recipe, {.gptq = true}, {.windows = foreign}), testing::HasSubstr("token 4000"));
  CalibrationStatistics ranges;
  ranges.add(std::vector<std::string>{"model.layers.0.mlp.down_proj"}, test::random_values(DType::kF32, {8, 128}, 1, 1.0f), false);
  EXPECT_THAT(message(recipe, {.gptq = true}, {.statistics = &ranges}),
              testing::HasSubstr("no second moment of the input of 'model.layers.0"));
  for (const std::int64_t channels : {64, 256}) {
    CalibrationStatistics other;
    other.add(std::vector<std::string>{"model.layers.0.mlp.down_proj"}, test::random_values(DType::kF32, {8, channels}, 1, 1.0f), true);
    for (const char* method : {"gptq", "clip", "awq", "gptq+refine"})
      EXPECT_THAT(message(recipe, Method::parse(method), {.statistics = &other}), testing::HasSubstr("of another model")) << method;
  }
  EXPECT_THAT(message(recipe, {.correct = true}, {.statistics = &ranges}), testing::HasSubstr("not statistics"));
  EXPECT_THROW(fit_weight(test::random_values(DType::kF32, {8, 32}, 1, 1.0f), recipe.scheme, test::identity(31), {.gptq = true}),
               InvalidArgument);
}

TEST(MethodNames, AreStepsJoinedByPlus) {
  for (const char* text : {"rtn", "gptq", "clip", "gptq+clip", "gptq+clip+refine", "correct+gptq+clip+refine"})
    EXPECT_EQ(Method::parse(text).to_string(), text);
  EXPECT_EQ(Method::parse("refine+gptq").to_string(), "gptq+refine");
  for (const char* text : {"", "gptqq", "gptq+", "+gptq", "gptq+gptq", "rtn+gptq", "GPTQ"})
    EXPECT_THROW(Method::parse(text), InvalidArgument) << text;
}

/// Mean squared difference of the logits from the plain model's, over all windows.
double logit_error(const fs::path& plain, const fs::path& other, std::span<const std::vector<std::int32_t>> windows) {
  const Model base = open_model(plain), model = open_model(other);
  double sum = 0.0;
  for (const auto& window : windows) {
    KvCache first = base.make_cache(), second = model.make_cache();
    const Sequence left{window, &first}, right{window, &second};
    const Tensor x = base.forward({&left, 1}), y = model.forward({&right, 1});
    for (std::int64_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x.as<float>()[i] - y.as<float>()[i]), 2);
  }
  return sum;
}

TEST_F(GptqCheckpoint, CorrectMakesGoodWhatEarlierLayersDid) {
  std::vector<double> errors;
  for (const char* method : {"gptq", "correct+gptq"}) {
    quantize_checkpoint(place_ / "in", place_ / method, Recipe::of("int2:block32:asym"), Method::parse(method), {.windows = windows_});
    errors.push_back(logit_error(place_ / "in", place_ / method, windows_));
  }
  EXPECT_LT(errors[1], 0.9 * errors[0]);
}

TEST_F(GptqCheckpoint, StatisticsOfThePlainModelServeToo) {
  CalibrationStatistics statistics;
  const Model model = open_model(place_ / "in");
  for (const auto& window : windows_) {
    KvCache cache = model.make_cache();
    const Sequence sequence{window, &cache};
    model.forward({&sequence, 1}, Logits::kLast,
                  [&](std::span<const std::string> modules, const Tensor& x) { statistics.add(modules, x, true); });
  }
  const MethodReport report =
      quantize_checkpoint(place_ / "in", place_ / "out", Recipe::of("int4:block32"), {.gptq = true}, {.statistics = &statistics});
  EXPECT_EQ(report.modules.size(), 14u);
  EXPECT_EQ(report.fallbacks, 0);
  for (const FittedModule& module : report.modules) EXPECT_LT(module.loss_after, module.loss_before) << module.module;
}

}  // namespace
}  // namespace narrow
