// The executor against itself: batches, caches, quantized forms, threads; and its refusals. tests/python compares it with transformers.
#include "narrow/model.h"

#include <omp.h>

#include <cmath>

#include "model/small_model.h"
#include "narrow/error.h"
#include "narrow/evaluate.h"

namespace narrow {
namespace {

Tensor read_at_once(const Model& model, const std::vector<std::int32_t>& tokens, const Scheme& cache = Scheme::parse("fp32")) {
  KvCache kv = model.make_cache(cache);
  const Sequence sequence{tokens, &kv};
  return model.forward({&sequence, 1});
}

/// The largest difference of two tensors, relative to the largest value of the first.
double difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double worst = 0.0, largest = 0.0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a.as<float>()[i])));
    worst = std::max(worst, std::fabs(static_cast<double>(a.as<float>()[i]) - static_cast<double>(b.as<float>()[i])));
  }
  return worst / largest;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.byte_size(), b.data());
}

class EveryArchitecture : public testing::TestWithParam<test::Decoder> {};

TEST_P(EveryArchitecture, TokenByTokenAndInBatchesItIsTheSame) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", GetParam());
  const Model model = open_model(place / "model");
  const auto tokens = test::random_tokens(50, GetParam().vocabulary, 1), other = test::random_tokens(23, GetParam().vocabulary, 2);
  const Tensor whole = read_at_once(model, tokens);
  ASSERT_EQ(whole.shape(), (Shape{50, GetParam().vocabulary}));

  KvCache a = model.make_cache(), b = model.make_cache();
  const Sequence both[] = {{other, &b}, {tokens, &a}};
  const Tensor batch = model.forward(both);
  EXPECT_LT(difference(whole, Tensor::borrow(batch.as<float>() + 23 * GetParam().vocabulary, DType::kF32, whole.shape())), 1e-5);
  EXPECT_EQ(a.size(), 50);
  EXPECT_EQ(b.size(), 23);

  // The dynamic RoPE turns all keys by the length at hand, so that a longer sequence is another one.
  if (model.config().rope.kind == RopeConfig::Kind::kDynamic) return;
  KvCache kv = model.make_cache();
  std::size_t done = 0;
  for (const std::size_t step : {7u, 1u, 1u, 12u, 1u, 28u}) {
    const Sequence part{std::span(tokens).subspan(done, step), &kv};
    done += step;
    const Tensor last = model.forward({&part, 1}, Logits::kLast);
    const Tensor expected =
        Tensor::borrow(whole.as<float>() + static_cast<std::int64_t>(done - 1) * GetParam().vocabulary, DType::kF32, last.shape());
    EXPECT_LT(difference(expected, last), 2e-5) << "after " << done;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Model, EveryArchitecture,
    testing::Values(test::Decoder{}, test::Decoder{.type = "mistral", .extra = R"("sliding_window": 9,)"},
                    test::Decoder{.type = "qwen2", .tied = true, .biases = true}, test::Decoder{.type = "qwen3", .head_dim = 32},
                    test::Decoder{.extra = R"("rope_scaling": {"rope_type": "dynamic", "factor": 2.0},)", .dtype = DType::kF32},
                    test::Decoder{.type = "mixtral", .experts = 4}, test::Decoder{.type = "qwen3_moe", .experts = 5, .per_token = 1},
                    test::Decoder{.heads = 3, .kv_heads = 1, .head_dim = 10, .dtype = DType::kF16}),
    [](const auto& decoder) { return decoder.param.type + std::to_string(decoder.index); });

TEST(Model, NarrowCachesStayNear) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const Model model = open_model(place / "model");
  const auto tokens = test::random_tokens(40, 96, 3);
  const Tensor exact = read_at_once(model, tokens);
  KvCache fp32 = model.make_cache();
  const Sequence sequence{tokens, &fp32};
  model.forward({&sequence, 1});
  for (const auto& [scheme, bound, share] :
       {std::tuple{"fp16", 2e-3, 0.5}, {"bf16", 1e-2, 0.5}, {"int8:row", 2e-2, 0.35}, {"fp8_e4m3:row", 0.15, 0.35}}) {
    SCOPED_TRACE(scheme);
    const double apart = difference(exact, read_at_once(model, tokens, KvCache::parse_scheme(scheme)));
    EXPECT_LT(apart, bound);
    EXPECT_GT(apart, 0.0);
    KvCache narrow = model.make_cache(KvCache::parse_scheme(scheme));
    const Sequence again{tokens, &narrow};
    model.forward({&again, 1});
    EXPECT_LE(static_cast<double>(narrow.byte_size()), share * static_cast<double>(fp32.byte_size()));
  }
  EXPECT_THROW(model.make_cache(Scheme::parse("int8:tensor")), InvalidArgument);
  EXPECT_THROW(model.make_cache(Scheme::parse("nvfp4")), InvalidArgument);
}

TEST(Model, AQuantizedCheckpointEqualsQuantizingAsItIsRead) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const auto tokens = test::random_tokens(33, 96, 4);
  const Tensor dense = read_at_once(open_model(place / "model"), tokens);
  int number = 0;
  for (const auto& [scheme, activations] : {std::pair{"int8:row", "int8:row:dynamic"},
                                            {"int4:block32:asym", "int8:row:asym:dynamic"},
                                            {"nvfp4", ""},
                                            {"mxfp4", "mxfp4:dynamic"},
                                            {"fp6_e3m2:row", "fp8_e4m3:block32:dynamic"},
                                            {"msfp12", ""}}) {
    SCOPED_TRACE(testing::Message() << scheme << " " << activations);
    Recipe recipe{.scheme = Scheme::parse(scheme)};
    if (*activations != '\0')
      recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse(activations), .rules = {{"o_proj", std::nullopt}}};
    const auto output = place / ("out" + std::to_string(number++));
    quantize_checkpoint(place / "model", output, recipe);
    const Model stored = open_model(output), made = open_model(place / "model", {.recipe = recipe});
    const Tensor x = read_at_once(stored, tokens), y = read_at_once(made, tokens);
    EXPECT_TRUE(same_bytes(x, y));
    EXPECT_GT(difference(dense, x), 0.0);
    EXPECT_LT(difference(dense, x), 1.0);
    for (const LinearInfo& linear : stored.linears()) {
      EXPECT_EQ(linear.weight, recipe.scheme);
      EXPECT_EQ(linear.activation.has_value(), *activations != '\0' && !linear.module.ends_with("o_proj"));
    }
    EXPECT_EQ(stored.bits_per_weight(), made.bits_per_weight());
    EXPECT_THROW(open_model(output, {.recipe = recipe}), InvalidArgument);
  }
}

/// W8A8 beside the same int8 weights with exact inputs: near, and not the same.
TEST(Model, RoundedInputsStayNear) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.layers = 1});
  const auto tokens = test::random_tokens(20, 96, 5);
  Recipe recipe{.scheme = Scheme::parse("int8:row")};
  const Tensor exact = read_at_once(open_model(place / "model", {.recipe = recipe}), tokens);
  recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse("int8:row:dynamic")};
  const Tensor rounded = read_at_once(open_model(place / "model", {.recipe = recipe}), tokens);
  EXPECT_LT(difference(exact, rounded), 0.05);
  EXPECT_GT(difference(exact, rounded), 1e-5);
}

/// In fp32 attention does not depend on the order of its sums, nor do integer products: one token at a time meets the codes that all at
/// once meet, and only the head's sums differ.
TEST(Model, InFp32IntegerLayersHaveTheSameBitsTokenByToken) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.head_dim = 32});
  const Model model = open_model(place / "model", {.compute = Compute::kFp32, .recipe = Recipe::of("W8A8")});
  const auto tokens = test::random_tokens(70, 96, 11);
  const Tensor whole = read_at_once(model, tokens);
  KvCache kv = model.make_cache();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Sequence one{std::span(tokens).subspan(i, 1), &kv};
    const Tensor last = model.forward({&one, 1});
    const Tensor expected = Tensor::borrow(whole.as<float>() + static_cast<std::int64_t>(i) * 96, DType::kF32, last.shape());
    ASSERT_LT(difference(expected, last), 1e-6) << "token " << i;
  }
}

TEST(Model, StaticActivationsNeedTheirScales) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const auto tokens = test::random_tokens(20, 96, 6);
  Recipe recipe{.scheme = Scheme::parse("int8:row")};
  recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse("int8:tensor:static")};
  EXPECT_THROW(open_model(place / "model", {.recipe = recipe}), InvalidArgument);
  std::map<std::string, float> largest;
  KvCache kv = open_model(place / "model").make_cache();
  const Sequence sequence{tokens, &kv};
  const Model plain = open_model(place / "model");
  const Tensor exact = plain.forward({&sequence, 1}, Logits::kAll, [&](std::span<const std::string> modules, const Tensor& x) {
    for (const std::string& module : modules)
      for (std::int64_t i = 0; i < x.size(); ++i) largest[module] = std::max(largest[module], std::fabs(x.as<float>()[i]));
  });
  EXPECT_EQ(largest.size(), plain.linears().size());
  for (const auto& [module, amax] : largest) recipe.activations->scales[module] = {.scale = amax / 127.0f};
  quantize_checkpoint(place / "model", place / "static", recipe);
  const Model stored = open_model(place / "static");
  EXPECT_TRUE(same_bytes(read_at_once(stored, tokens), read_at_once(open_model(place / "model", {.recipe = recipe}), tokens)));
  EXPECT_LT(difference(exact, read_at_once(stored, tokens)), 0.5);
  EXPECT_TRUE(stored.linears().front().activation->is_static);
}

TEST(Model, AnyNumberOfThreadsGivesTheSameBits) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  Recipe recipe{.scheme = Scheme::parse("int8:row")};
  recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse("int8:row:dynamic")};
  const auto tokens = test::random_tokens(150, 96, 7);
  const int before = omp_get_max_threads();
  for (const ModelOptions& options : {ModelOptions{}, ModelOptions{.recipe = recipe}}) {
    const Model model = open_model(place / "model", options);
    omp_set_num_threads(1);
    const Tensor one = read_at_once(model, tokens);
    omp_set_num_threads(3);
    EXPECT_TRUE(same_bytes(one, read_at_once(model, tokens)));
    omp_set_num_threads(before);
  }
}

/// The sentence of the exception that opening gives.
template <typename Exception>
std::string refusal(const std::filesystem::path& path) {
  try {
    open_model(path);
  } catch (const Exception& error) {
    return error.what();
  }
  return "no refusal of that kind";
}

TEST(Model, WhatItLacksItNames) {
  const test::TemporaryDirectory place;
  const auto refused = [&](const test::Decoder& decoder) {
    test::write_decoder(place / "model", decoder);
    return refusal<Unsupported>(place / "model");
  };
  EXPECT_THAT(refused({.type = "mamba"}), testing::HasSubstr("no architecture 'mamba'"));
  EXPECT_THAT(refused({.extra = R"("hidden_act": "gelu",)"}), testing::HasSubstr("'gelu'"));
  EXPECT_THAT(refused({.extra = R"("rope_scaling": {"rope_type": "longrope", "factor": 2.0},)"}), testing::HasSubstr("'longrope'"));
  EXPECT_THAT(refused({.type = "qwen2_moe", .experts = 4}), testing::HasSubstr("no architecture 'qwen2_moe'"));
  EXPECT_THAT(refused({.extra = R"("partial_rotary_factor": 0.5,)"}), testing::HasSubstr("partial_rotary_factor"));
  test::write_decoder(place / "model", {});
  std::filesystem::remove(place / "model" / "config.json");
  EXPECT_THAT(refusal<Unsupported>(place / "model"), testing::HasSubstr("config.json"));
  EXPECT_THROW(open_model(place / "model", {.compute = Compute::kFp16}), Unsupported);
}

TEST(Model, FilesThatContradictTheConfigAreCorrupt) {
  const test::TemporaryDirectory place;
  const auto with_config = [&](const std::string& from, const std::string& to) {
    test::write_decoder(place / "model", {});
    std::string config = test::read_bytes(place / "model" / "config.json");
    config.replace(config.find(from), from.size(), to);
    test::write_bytes(place / "model" / "config.json", config);
    return refusal<CorruptFile>(place / "model");
  };
  EXPECT_THAT(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), testing::HasSubstr("model.layers.2."));
  EXPECT_THAT(with_config("\"hidden_size\": 64", "\"hidden_size\": 65"), testing::HasSubstr("[96, 65]"));
  EXPECT_THAT(with_config("\"hidden_size\": 64", "\"hidden_size\": -1"), testing::HasSubstr("hidden_size"));
  EXPECT_THAT(with_config("\"hidden_size\": 64", "\"hidden_size\": \"big\""), testing::HasSubstr("hidden_size"));
  EXPECT_THAT(with_config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"), testing::HasSubstr("cannot share"));
  EXPECT_THAT(with_config("\"hidden_size\": 64,", ""), testing::HasSubstr("no hidden_size"));
  EXPECT_THAT(with_config("\"llama\"", "\"mixtral\""), testing::HasSubstr("num_local_experts"));
  EXPECT_THAT(with_config("\"llama\"", "\"mixtral\", \"num_local_experts\": 4, \"num_experts_per_tok\": 5"),
              testing::HasSubstr("through 5 experts and there are 4"));
  EXPECT_THAT(with_config("\"llama\"", "\"mixtral\", \"num_local_experts\": 4, \"num_experts_per_tok\": 2"),
              testing::HasSubstr("block_sparse_moe.experts.0.w1.weight"));
}

TEST(Model, BadCallsAreRefused) {
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  test::write_decoder(place / "other", {.layers = 1});
  const Model model = open_model(place / "model");
  KvCache kv = model.make_cache(), foreign = open_model(place / "other").make_cache();
  const std::vector<std::int32_t> good{1, 2}, bad{1, 96}, none;
  const auto call = [&](std::vector<Sequence> sequences) { return model.forward(sequences); };
  EXPECT_THROW(call({{bad, &kv}}), InvalidArgument);
  EXPECT_THROW(call({{none, &kv}}), InvalidArgument);
  EXPECT_THROW(call({{good, nullptr}}), InvalidArgument);
  EXPECT_THROW(call({{good, &foreign}}), InvalidArgument);
  EXPECT_THROW(call({{good, &kv}, {good, &kv}}), InvalidArgument);
  EXPECT_EQ(kv.size(), 0);
  EXPECT_EQ(call({}).size(), 0);
  EXPECT_THROW(kv.truncate(1), InvalidArgument);
}

}  // namespace
}  // namespace narrow
