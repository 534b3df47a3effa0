// Mixtures of experts: what the methods do with routers, with experts that see some rows, and with those that see none.
#include <cmath>

#include <omp.h>

#include "io/files.h"
#include "methods/answers.h"
#include "methods/channel_links.h"
#include "model/router.h"
#include "model/small_model.h"
#include "narrow/error.h"
#include "narrow/methods.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

TEST(Router, ChoosesTheLikeliestAndOfEqualOnesTheFirst) {
  const Tensor logits = Tensor::of({0.0f, 2.0f, 1.0f, 2.0f, 5.0f, 5.0f, 5.0f, 5.0f}, {2, 4});
  const std::vector<model::Route> routes = model::route_rows(logits, {.count = 4, .per_token = 2, .intermediate = 1});
  EXPECT_EQ(routes[0].rows, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(routes[1].rows, (std::vector<std::int64_t>{0, 1}));
  EXPECT_TRUE(routes[2].rows.empty());
  EXPECT_EQ(routes[3].rows, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(routes[1].shares, (std::vector<float>{0.5f, 0.5f}));
  const std::vector<model::Route> parts =
      model::route_rows(logits, {.count = 4, .per_token = 2, .intermediate = 1, .shares_sum_to_one = false});
  EXPECT_FLOAT_EQ(parts[0].shares.front(), 0.25f);
  EXPECT_FLOAT_EQ(parts[3].shares.front(), static_cast<float>(1.0 / (2.0 + std::exp(-1.0) + std::exp(-2.0))));
}

class Experts : public testing::TestWithParam<std::string> {
 protected:
  void write(std::int64_t experts, std::int64_t per_token, std::size_t windows, std::size_t length) {
    test::write_decoder(in(), {.type = GetParam(), .experts = experts, .per_token = per_token, .dtype = DType::kF32});
    for (unsigned seed = 0; seed < windows; ++seed) windows_.push_back(test::random_tokens(length, 96, seed));
  }
  fs::path in() const { return place_ / "in"; }
  double error(const fs::path& path) const { return test::answer_error(in(), path, windows_); }
  MethodReport quantized(const char* out, const char* scheme, const char* method, const MethodRun& how = {}) const {
    const MethodReport report =
        quantize_checkpoint(in(), place_ / out, Recipe::of(scheme), Method::parse(method), {.windows = windows_}, how);
    EXPECT_TRUE(verify_checkpoint(place_ / out).problems.empty());
    return report;
  }
  std::string router() const { return fmt::format("model.layers.0.{}.gate.weight", GetParam() == "mixtral" ? "block_sparse_moe" : "mlp"); }

  test::TemporaryDirectory place_;
  test::Windows windows_;
};

INSTANTIATE_TEST_SUITE_P(Architectures, Experts, testing::Values("mixtral", "qwen3_moe"));

TEST_P(Experts, RoutersAreLeftAloneUnlessTheyAreTargets) {
  write(4, 2, 1, 8);
  const Checkpoint checkpoint = open_checkpoint(in());
  const auto fate = [&](const Recipe& recipe) {
    for (const PlannedTensor& tensor : plan_quantize(checkpoint, recipe, place_.path()).tensors)
      if (tensor.name == router()) return tensor.fate;
    throw std::runtime_error("the router is not in the plan");
  };
  Recipe recipe = Recipe::of("int8:row");
  EXPECT_EQ(fate(recipe), Fate::kCopy);
  recipe.targets = {"gate"};
  EXPECT_EQ(fate(recipe), Fate::kQuantize);
}

TEST_P(Experts, FoldingKeepsTheFunction) {
  write(4, 2, 4, 40);
  const Checkpoint checkpoint = open_checkpoint(in());
  ChannelFactors factors;
  for (const ChannelLink& link : channel_links(read_model_config(checkpoint)))
    for (std::int64_t i = 0; i < link.channels; ++i) factors[link.source].push_back(0.5f + 0.03f * static_cast<float>(i % 50));
  scale_channels(in(), place_ / "scaled", factors);
  EXPECT_LT(error(place_ / "scaled"), 1e-9);
  quantized("rotated", "fp16:row", "rotate");
  EXPECT_LT(error(place_ / "rotated"), 1e-6);
}

TEST_P(Experts, EveryMethodFitsTheRowsThatAnExpertSees) {
  write(4, 2, 6, 40);
  quantized("rounded", "int4:row", "rtn");
  for (const char* method : {"gptq", "gptq+clip+refine", "awq", "rotate+gptq"}) {
    const MethodReport report = quantized(method, "int4:row", method);
    EXPECT_EQ(report.fallbacks, 0) << method;
    for (const FittedModule& module : report.modules) EXPECT_LE(module.loss_after, module.loss_before * 1.0001) << method << module.module;
    EXPECT_LT(error(place_ / method), error(place_ / "rounded")) << method;
  }
}

TEST_P(Experts, AnyNumberOfThreadsAndSpilledInputsGiveTheSameBytes) {
  write(4, 2, 6, 40);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  quantized("one", "int4:row", "gptq");
  omp_set_num_threads(3);
  quantized("three", "int4:row", "gptq", {.spill = place_.path()});
  omp_set_num_threads(before);
  EXPECT_EQ(test::read_bytes(place_ / "one" / "model.safetensors"), test::read_bytes(place_ / "three" / "model.safetensors"));
}

TEST_P(Experts, UnseenOnesAreRoundedAndCounted) {
  write(8, 1, 1, 3);  // three tokens meet three experts of eight at most
  const MethodReport report = quantized("out", "int4:row", "gptq");
  EXPECT_GE(report.fallbacks, 2 * 5 * 3);
  const MethodReport folded = quantized("folded", "int4:row", "awq+gptq");
  EXPECT_GE(folded.fallbacks, 2 * 5 * 3);
}

TEST_P(Experts, StepsThroughAllLayersAreRefusedBeforeAnyComputation) {
  write(4, 2, 1, 8);
  for (const char* method : {"correct+gptq", "gptq+tune"}) {
    EXPECT_THROW(quantized("refused", "int4:row", method), Unsupported) << method;
    EXPECT_FALSE(fs::exists(place_ / "refused"));
  }
}

}  // namespace
}  // namespace narrow
