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
constexpr int kTexts = 3;
/// Inputs of products are rounded to fp16 on the GPU, by 2^-11 of a value at most, 24 times in six layers and once before the head. The
/// bound is of the norm of a position's logits; one logit's error is no more than four times its share of that.
constexpr double kBound = 4 * 0x1p-11, kOneLogit = 4.0;

/// What all texts of a scheme came to.
struct Agreement {
  int tokens = 0, others = 0;  ///< others: not the token of the CPU's largest logit
  double widest_gap = 0.0;     ///< between the CPU's largest logit and that of the other token
  double most_distant = 0.0;   ///< ||cpu - gpu|| / ||cpu|| of a position's logits
};

/// A token that is not the CPU's is one that the bound allows: its logit, on the CPU, is as large as the largest but for both errors.
void compare_position(std::span<const float> cpu, std::span<const float> gpu, std::int32_t token, Agreement& all) {
  double squares = 0.0, differences = 0.0;
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    const double x = static_cast<double>(cpu[i]), y = static_cast<double>(gpu[i]);
    squares += x * x;
    differences += (x - y) * (x - y);
  }
  const double distance = std::sqrt(differences / squares), rms = std::sqrt(squares / static_cast<double>(cpu.size()));
  all.most_distant = std::max(all.most_distant, distance);
  EXPECT_LT(distance, kBound);
  ++all.tokens;
  const auto best = std::max_element(cpu.begin(), cpu.end());
  if (best - cpu.begin() == token) return;
  ++all.others;
  const double gap = static_cast<double>(*best) - static_cast<double>(cpu[static_cast<std::size_t>(token)]);
  all.widest_gap = std::max(all.widest_gap, gap);
  EXPECT_LE(gap, 2 * kOneLogit * kBound * rms) << "token " << token << " after " << all.tokens;
}

TEST(Texts, AreTheCpusButForTies) {
  NARROW_REQUIRE_DEVICE();
  const std::filesystem::path examples = NARROW_EXAMPLES;
  const TokenWindows windows = read_token_windows(examples / "docs_tokens.safetensors", "eval");
  for (const char* scheme : {"", "int8:row", "int4:block128", "int4:block32:asym", "int3:block128", "fp8_e4m3:row", "fp6_e3m2:row",
                             "fp5_e2m2:row", "fp4_e2m1:row", "fp3_e2m0:row", "mxfp4", "nvfp4"}) {
    SCOPED_TRACE(scheme);
    std::optional<Recipe> recipe;
    if (*scheme != '\0') recipe = Recipe{.scheme = Scheme::parse(scheme)};
    const Model cpu = open_model(examples / "docs-llama-13m", {.recipe = recipe}),
                gpu = open_model(examples / "docs-llama-13m", {.device = kDevice, .recipe = recipe});
    const model::DeviceDecoder& decoder = *gpu.state().on_device;
    Agreement all;
    for (int text = 0; text < kTexts; ++text) {
      const std::vector<std::int32_t>& window = windows[static_cast<std::size_t>(text) * 40];
      std::vector<std::int32_t> tokens(window.begin(), window.begin() + kPrompt);
      KvCache on_gpu = gpu.make_cache(KvCache::parse_scheme("fp32")), on_cpu = cpu.make_cache(KvCache::parse_scheme("fp32"));
      const Sequence prompt{tokens, &on_gpu};
      KvCache* const caches[] = {&on_gpu};
      model::DecodeLoop loop(decoder, caches, decoder.forward_on_device({&prompt, 1}, Logits::kLast, {}), {}, kTokens + 1);
      std::vector<Tensor> logits;
      for (std::int64_t i = 0; i < kTokens; ++i) {
        loop.step();
        logits.push_back(to_host(loop.logits(), decoder.stream()));
      }
      const std::vector<std::int32_t> made = loop.tokens(0, kTokens + 1);
      tokens.insert(tokens.end(), made.begin(), made.end() - 1);
      const Sequence all_tokens{tokens, &on_cpu};
      const Tensor expected = cpu.forward({&all_tokens, 1});
      const std::size_t vocabulary = static_cast<std::size_t>(expected.shape().back());
      for (std::int64_t i = 0; i < kTokens; ++i) {
        const float* row = expected.as<float>() + static_cast<std::size_t>(kPrompt + i) * vocabulary;
        compare_position({row, vocabulary}, {logits[static_cast<std::size_t>(i)].as<float>(), vocabulary},
                         made[static_cast<std::size_t>(i) + 1], all);
      }
    }
    std::printf("%-18s %d of %d tokens are the CPU's; the others' logits are at most %.4f below its largest; logits differ by %.5f\n",
                *scheme == '\0' ? "bf16" : scheme, all.tokens - all.others, all.tokens, all.widest_gap, all.most_distant);
  }
}

}  // namespace
}  // namespace narrow::cuda::testing
