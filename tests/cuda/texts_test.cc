// Greedy texts of the example model, made by decode steps, against the CPU's logits over the same text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>

#include "device/cuda/runtime.h"
#include "harness.h"
#include "model/cuda/decode_loop.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "narrow/evaluate.h"
#include "narrow/model.h"

namespace narrow::cuda::testing {
namespace {

constexpr std::int64_t kPrompt = 32, kTokens = 256;
constexpr std::size_t kTexts = 3;

/// Inputs of products are rounded to fp16 on the GPU, by 2^-11 of a value at most, 24 times in six layers and once before the head. The
/// bound is of the norm of a position's logits; one logit's error is no more than four times its share of that.
constexpr double kDefaultBound = 4 * 0x1p-11, kOneLogit = 4.0;
/// With Compute::kFp32 inputs keep 22 bits, and sums of up to 1024 products are rounded to fp32 in another order, by some 2^-23 of their
/// norm, as often: 25 * (2^-22 + 2^-23) where all errors add up.
constexpr double kFp32Bound = 0x1p-16;

/// A greedy text, and the logits that its tokens after the prompt were chosen by.
struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<Tensor> logits;
};

/// Texts after prompts, made by steps of all of them together.
std::vector<Text> make_texts(const Model& gpu, std::span<const std::vector<std::int32_t>> prompts) {
  const model::DeviceDecoder& decoder = *gpu.state().on_device;
  const std::size_t count = prompts.size();
  std::vector<KvCache> caches;
  for (std::size_t i = 0; i < count; ++i) caches.push_back(gpu.make_cache(KvCache::parse_scheme("fp32")));
  std::vector<KvCache*> places;
  std::vector<Sequence> sequences;
  std::vector<Text> texts;
  for (std::size_t i = 0; i < count; ++i) {
    places.push_back(&caches[i]);
    sequences.push_back({prompts[i], &caches[i]});
    texts.push_back({prompts[i], {}});
  }
  const auto keep = [&](const Tensor& logits) {
    const Tensor all = to_host(logits, decoder.stream());
    const std::int64_t vocabulary = all.shape().back();
    for (std::size_t i = 0; i < count; ++i) {
      texts[i].logits.push_back(Tensor::empty(DType::kF32, {vocabulary}));
      std::copy_n(all.as<float>() + static_cast<std::int64_t>(i) * vocabulary, vocabulary, texts[i].logits.back().as<float>());
    }
  };
  const Tensor first = decoder.forward_on_device(sequences, Logits::kLast, {});
  keep(first);
  model::DecodeLoop loop(decoder, places, first, {}, kTokens);
  for (std::int64_t i = 1; i < kTokens; ++i) {
    loop.step();
    keep(loop.logits());
  }
  const std::vector<std::int32_t> made = loop.tokens(0, kTokens);
  for (std::size_t i = 0; i < made.size(); ++i) texts[i % count].tokens.push_back(made[i]);
  return texts;
}

/// What texts of a scheme came to.
struct Agreement {
  int tokens = 0, others = 0;  ///< others: not the token of the CPU's largest logit
  double widest_gap = 0.0;     ///< between the CPU's largest logit and that of the other token
  double most_distant = 0.0;   ///< ||cpu - gpu|| / ||cpu|| of a position's logits
};

/// A token that is not the CPU's is one that the bound allows: its logit, on the CPU, is as large as the largest but for both errors.
void compare_position(std::span<const float> cpu, std::span<const float> gpu, std::int32_t token, double bound, Agreement& all) {
  double squares = 0.0, differences = 0.0;
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    const double x = static_cast<double>(cpu[i]), y = static_cast<double>(gpu[i]);
    squares += x * x;
    differences += (x - y) * (x - y);
  }
  const double distance = std::sqrt(differences / squares), rms = std::sqrt(squares / static_cast<double>(cpu.size()));
  all.most_distant = std::max(all.most_distant, distance);
  EXPECT_LT(distance, bound);
  ++all.tokens;
  const auto best = std::max_element(cpu.begin(), cpu.end());
  if (best - cpu.begin() == token) return;
  ++all.others;
  const double gap = static_cast<double>(*best) - static_cast<double>(cpu[static_cast<std::size_t>(token)]);
  all.widest_gap = std::max(all.widest_gap, gap);
  EXPECT_LE(gap, 2 * kOneLogit * bound * rms) << "token " << token << " after " << all.tokens;
}

/// The CPU's logits after every token of a text.
Tensor cpu_logits(const Model& cpu, const std::vector<std::int32_t>& tokens) {
  KvCache cache = cpu.make_cache(KvCache::parse_scheme("fp32"));
  const Sequence sequence{tokens, &cache};
  return cpu.forward({&sequence, 1});
}

void compare_text(const Tensor& expected, const Text& text, double bound, Agreement& all) {
  const std::size_t vocabulary = static_cast<std::size_t>(expected.shape().back());
  for (std::size_t i = 0; i < text.logits.size(); ++i) {
    const std::size_t next = static_cast<std::size_t>(kPrompt) + i;
    compare_position({expected.as<float>() + (next - 1) * vocabulary, vocabulary}, {text.logits[i].as<float>(), vocabulary},
                     text.tokens[next], bound, all);
  }
}

std::vector<std::vector<std::int32_t>> some_prompts() {
  const TokenWindows windows = read_token_windows(std::filesystem::path(NARROW_EXAMPLES) / "docs_tokens.safetensors", "eval");
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::size_t text = 0; text < kTexts; ++text) prompts.emplace_back(windows[text * 40].begin(), windows[text * 40].begin() + kPrompt);
  return prompts;
}

void print(const char* scheme, const char* how, const Agreement& all) {
  std::printf("%-18s %s: %d of %d tokens are the CPU's; the others' logits are at most %.4f below its largest; logits differ by %.2e\n",
              *scheme == '\0' ? "bf16" : scheme, how, all.tokens - all.others, all.tokens, all.widest_gap, all.most_distant);
  std::fflush(stdout);
}

struct Models {
  Model cpu, gpu;
};
Models open_models(const char* scheme, Compute compute) {
  const std::filesystem::path path = std::filesystem::path(NARROW_EXAMPLES) / "docs-llama-13m";
  std::optional<Recipe> recipe;
  if (*scheme != '\0') recipe = Recipe::of(scheme);
  return {open_model(path, {.compute = compute, .recipe = recipe}),
          open_model(path, {.compute = compute, .device = kDevice, .recipe = recipe})};
}

constexpr const char* kSchemes[] = {"",
                                    "int8:row",
                                    "int4:block128",
                                    "int4:block32:asym",
                                    "int3:block128",
                                    "fp8_e4m3:row",
                                    "fp6_e3m2:row",
                                    "fp5_e2m2:row",
                                    "fp4_e2m1:row",
                                    "fp3_e2m0:row",
                                    "mxfp4",
                                    "nvfp4"};

/// One or two more of every family, and inputs that are rounded, so that another last bit may become another code: their products are
/// exact, or summed in fp64, and everything between them has the CPU's bits.
constexpr const char* kMoreSchemes[] = {"int8:row:asym",
                                        "int8:block128",
                                        "int3:block32:asym",
                                        "int2:block32:asym",
                                        "fp8_e5m2:row",
                                        "fp8_e4m3:128x128",
                                        "fp6_e2m3:row",
                                        "fp5_e3m1:row",
                                        "fp4_e2m1:block32",
                                        "mxfp8_e4m3",
                                        "mxfp6_e3m2",
                                        "mxint8",
                                        "msfp12",
                                        "nf4:block64",
                                        "W8A8",
                                        "W4A8",
                                        "FP8_DYNAMIC",
                                        "FP8_BLOCK",
                                        "MXFP8",
                                        "MXFP4"};

TEST(Texts, AreTheCpusButForTies) {
  NARROW_REQUIRE_DEVICE();
  const std::vector<std::vector<std::int32_t>> prompts = some_prompts();
  for (const char* scheme : kSchemes) {
    SCOPED_TRACE(scheme);
    const Models models = open_models(scheme, Compute::kDefault);
    Agreement all;
    for (const std::vector<std::int32_t>& prompt : prompts) {
      const Text text = make_texts(models.gpu, {&prompt, 1}).front();
      compare_text(cpu_logits(models.cpu, text.tokens), text, kDefaultBound, all);
    }
    print(scheme, "by default", all);
  }
}

/// Every token is the CPU's where both are asked for fp32, whether texts are made one by one (steps as one kernel, where it takes the
/// scheme) or all at once (one kernel per operation).
TEST(Texts, AreTheCpusInFp32) {
  NARROW_REQUIRE_DEVICE();
  const std::vector<std::vector<std::int32_t>> prompts = some_prompts();
  std::vector<const char*> schemes(std::begin(kSchemes), std::end(kSchemes));
  schemes.insert(schemes.end(), std::begin(kMoreSchemes), std::end(kMoreSchemes));
  for (const char* scheme : schemes) {
    SCOPED_TRACE(scheme);
    const Models models = open_models(scheme, Compute::kFp32);
    const std::vector<Text> texts = make_texts(models.gpu, prompts);
    Agreement at_once, one_by_one;
    for (std::size_t i = 0; i < kTexts; ++i) {
      const Tensor expected = cpu_logits(models.cpu, texts[i].tokens);
      compare_text(expected, texts[i], kFp32Bound, at_once);
      const Text alone = make_texts(models.gpu, {&prompts[i], 1}).front();
      const bool same = alone.tokens == texts[i].tokens;
      compare_text(same ? expected : cpu_logits(models.cpu, alone.tokens), alone, kFp32Bound, one_by_one);
    }
    print(scheme, "in fp32, at once", at_once);
    print(scheme, "in fp32, one by one", one_by_one);
    EXPECT_EQ(at_once.others, 0);
    EXPECT_EQ(one_by_one.others, 0);
  }
}

}  // namespace
}  // namespace narrow::cuda::testing
