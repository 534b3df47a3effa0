// The example model on its held-out text. bf16 is scored on all windows; the schemes on the first ones, against figures of this executor
// whose full-length counterparts agree with an independent float32 implementation to 0.5 % (docs/evaluation.md).
#include <gtest/gtest.h>

#include "narrow/evaluate.h"
#include "narrow/model.h"

namespace narrow {
namespace {

const std::filesystem::path kExamples = NARROW_EXAMPLES;

TokenWindows example_windows(std::size_t count) {
  TokenWindows windows = read_token_windows(kExamples / "docs_tokens.safetensors", "eval");
  if (count < windows.size()) windows.resize(count);
  return windows;
}

TEST(Perplexity, OfTheExampleInBf16) {
  const Model model = open_model(kExamples / "docs-llama-13m", {.compute = Compute::kBf16});
  const TokenWindows windows = example_windows(268);
  ASSERT_EQ(windows.size(), 268u);
  const Evaluation result = evaluate(model, windows);
  EXPECT_EQ(result.tokens, 136948);
  EXPECT_NEAR(result.perplexity, 7.083, 0.005);
}

TEST(Perplexity, OfRoundToNearestWeights) {
  const TokenWindows windows = example_windows(4);
  const double plain = evaluate(open_model(kExamples / "docs-llama-13m"), windows).perplexity;
  const struct {
    const char* scheme;
    double ratio;  ///< perplexity over that of bf16
  } kRatios[] = {{"int8:row", 1.0016},     {"fp8_e4m3:row", 1.0040}, {"fp6_e3m2:row", 1.0239},       {"fp5_e2m2:row", 1.0296},
                 {"fp4_e2m1:row", 1.1239}, {"fp3_e2m0:row", 2.1944}, {"int4:block128:asym", 1.1116}, {"msfp12", 1.0894},
                 {"mxfp4", 1.1221},        {"nvfp4", 1.0864}};
  for (const auto& [scheme, ratio] : kRatios) {
    const Model model = open_model(kExamples / "docs-llama-13m", {.recipe = Recipe::of(scheme)});
    EXPECT_NEAR(evaluate(model, windows).perplexity / plain, ratio, 0.002 * ratio) << scheme;
  }
}

/// Rounded inputs turn the last bits of a sum into other codes, so that a few windows tell no more than the order of the loss.
TEST(Perplexity, OfRoundedInputs) {
  const TokenWindows windows = example_windows(4);
  const double plain = evaluate(open_model(kExamples / "docs-llama-13m"), windows).perplexity;
  for (const char* preset : {"W8A8", "FP8_DYNAMIC", "FP8_BLOCK"}) {
    const double ratio = evaluate(open_model(kExamples / "docs-llama-13m", {.recipe = Recipe::of(preset)}), windows).perplexity / plain;
    EXPECT_GT(ratio, 1.001) << preset;
    EXPECT_LT(ratio, 1.02) << preset;
  }
}

}  // namespace
}  // namespace narrow
