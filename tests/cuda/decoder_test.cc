// The executor on a CUDA device against the CPU's: every architecture, caches, schemes, batches; prompts and single tokens; sampling.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "device/cuda/runtime.h"
#include "harness.h"
#include "kernels/cuda/decoder/decoder.h"
#include "kernels/cuda/decoder/experts.h"
#include "model/cuda/decode_loop.h"
#include "model/kv_cache.h"
#include "model/router.h"
#include "model/small_model.h"
#include "model/weights.h"
#include "narrow/evaluate.h"
#include "narrow/generate.h"
#include "narrow/model.h"

namespace narrow::cuda::testing {
namespace {

Tensor read_at_once(const Model& model, const std::vector<std::int32_t>& tokens, const std::string& cache) {
  KvCache kv = model.make_cache(KvCache::parse_scheme(cache));
  const Sequence sequence{tokens, &kv};
  return model.forward({&sequence, 1});
}

/// ||a - b|| / ||a||.
double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double squares = 0.0, all = 0.0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a.as<float>()[i]), y = static_cast<double>(b.as<float>()[i]);
    squares += (x - y) * (x - y);
    all += x * x;
  }
  return std::sqrt(squares / all);
}

Tensor last_row(const Tensor& x) {
  const std::int64_t cols = x.shape().back();
  return Tensor::borrow(x.as<float>() + x.size() - cols, DType::kF32, {1, cols});
}

/// Inputs of products are rounded to fp16 here, by 2^-11 of a value at most, and not on the CPU: seven times in two layers and once before
/// the head. Prompts of more than 64 rows round everything between products as well: q, k, v, the weights of attention, gate, up and what
/// is added to the stream, twice as often and with the products' own amplification.
constexpr double kFewBound = 4 * 0x1p-11, kManyBound = 16 * 0x1p-11;
/// With Compute::kFp32 inputs keep 22 bits, and sums of fp32 in another order are what is left.
constexpr double kFp32Bound = 0x1p-16;

class EveryArchitecture : public ::testing::TestWithParam<test::Decoder> {};

TEST_P(EveryArchitecture, GivesTheLogitsOfTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", GetParam());
  const Model cpu = open_model(place / "model"), gpu = open_model(place / "model", {.device = kDevice}),
              fp32 = open_model(place / "model", {.compute = Compute::kFp32, .device = kDevice});
  ASSERT_EQ(gpu.device(), kDevice);
  const auto tokens = test::random_tokens(150, GetParam().vocabulary, 1), few = test::random_tokens(23, GetParam().vocabulary, 2);
  for (const char* cache : {"fp32", "fp16"}) {
    SCOPED_TRACE(cache);
    EXPECT_LT(distance(read_at_once(cpu, few, cache), read_at_once(gpu, few, cache)), kFewBound) << "few rows";
    EXPECT_LT(distance(read_at_once(cpu, tokens, cache), read_at_once(gpu, tokens, cache)), kManyBound) << "tiles";
  }
  for (const auto* text : {&few, &tokens})
    EXPECT_LT(distance(read_at_once(cpu, *text, "fp32"), read_at_once(fp32, *text, "fp32")), kFp32Bound) << text->size() << " rows";
  // A prompt in pieces, then one token at a time, beside another sequence.
  if (cpu.config().rope.kind == RopeConfig::Kind::kDynamic) return;
  const Tensor whole = read_at_once(cpu, tokens, "fp16");
  KvCache kv = gpu.make_cache(KvCache::parse_scheme("fp16")), other = gpu.make_cache(KvCache::parse_scheme("fp16"));
  std::size_t done = 0;
  for (const std::size_t step : {70u, 1u, 1u, 66u, 1u, 11u}) {
    const Sequence part[] = {{few, &other}, {std::span(tokens).subspan(done, step), &kv}};
    other.truncate(0);
    done += step;
    const Tensor last = gpu.forward(part, Logits::kLast);
    const Tensor expected = Tensor::borrow(whole.as<float>() + static_cast<std::int64_t>(done - 1) * GetParam().vocabulary, DType::kF32,
                                           {1, GetParam().vocabulary});
    EXPECT_LT(distance(expected, last_row(last)), kManyBound) << "after " << done;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Decoder, EveryArchitecture,
    ::testing::Values(test::Decoder{}, test::Decoder{.type = "mistral", .extra = R"("sliding_window": 9,)"},
                      test::Decoder{.type = "qwen2", .tied = true, .biases = true}, test::Decoder{.type = "qwen3", .head_dim = 32},
                      test::Decoder{.extra = R"("rope_scaling": {"rope_type": "dynamic", "factor": 2.0},)", .dtype = DType::kF32},
                      test::Decoder{.heads = 3, .kv_heads = 1, .head_dim = 10, .dtype = DType::kF16},
                      test::Decoder{.hidden = 192, .intermediate = 200, .heads = 6, .kv_heads = 6, .head_dim = 128, .vocabulary = 331},
                      test::Decoder{.type = "mistral", .extra = R"("sliding_window": 70,)", .heads = 10, .kv_heads = 2, .head_dim = 72},
                      test::Decoder{.heads = 2, .kv_heads = 1, .head_dim = 192}),
    [](const auto& decoder) { return decoder.param.type + std::to_string(decoder.index); });

TEST(Decoder, NarrowCachesAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const Model cpu = open_model(place / "model"), gpu = open_model(place / "model", {.device = kDevice}),
              fp32 = open_model(place / "model", {.compute = Compute::kFp32, .device = kDevice});
  const auto tokens = test::random_tokens(100, 96, 3), few = test::random_tokens(40, 96, 3);
  for (const auto& [cache, bound] : {std::pair{"bf16", 4e-3}, {"int8:row", 1e-2}, {"fp8_e4m3:row", 4e-2}}) {
    SCOPED_TRACE(cache);
    // Another rounding of a key by one input in 2^12 may round to the next code: the bound is a share of the code's own step.
    EXPECT_LT(distance(read_at_once(cpu, few, cache), read_at_once(gpu, few, cache)), bound);
    EXPECT_LT(distance(read_at_once(cpu, tokens, cache), read_at_once(gpu, tokens, cache)), bound);
    EXPECT_LT(distance(read_at_once(cpu, tokens, cache), read_at_once(fp32, tokens, cache)), bound / 4);
  }
  EXPECT_THROW(gpu.make_cache(Scheme::parse("int4:row")), Unsupported);
}

TEST(Decoder, EverySchemeGivesTheLogitsOfTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.hidden = 128, .intermediate = 256, .heads = 4, .kv_heads = 2, .head_dim = 32});
  const auto tokens = test::random_tokens(90, 96, 4), few = test::random_tokens(9, 96, 5);
  for (const auto& [scheme, activations] : {std::pair{"int8:row", ""},
                                            {"int4:block32:asym", ""},
                                            {"fp6_e3m2:row", ""},
                                            {"fp5_e2m2:row", ""},
                                            {"fp4_e2m1:tensor", ""},
                                            {"fp3_e2m0:row", ""},
                                            {"fp8_e4m3:128x128", ""},
                                            {"nvfp4", ""},
                                            {"mxfp4", ""},
                                            {"msfp12", ""},
                                            {"nf4:block64", ""},
                                            {"int8:row", "int8:row:dynamic"},
                                            {"int8:tensor", "int8:row:dynamic"},
                                            {"fp8_e4m3:row", "fp8_e4m3:row:dynamic"},
                                            {"fp8_e4m3:128x128", "fp8_e4m3:block128:dynamic"},
                                            {"int4:block32", "int8:row:dynamic"},
                                            {"int4:block128", "int8:row:dynamic"},
                                            {"int4:block64:asym", "int8:row:dynamic"},
                                            {"mxfp4", "mxfp4:dynamic"}}) {
    SCOPED_TRACE(::testing::Message() << scheme << " " << activations);
    Recipe recipe{.scheme = Scheme::parse(scheme)};
    if (*activations != '\0') recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse(activations)};
    const Model cpu = open_model(place / "model", {.recipe = recipe}),
                gpu = open_model(place / "model", {.device = kDevice, .recipe = recipe}),
                fp32 = open_model(place / "model", {.compute = Compute::kFp32, .device = kDevice, .recipe = recipe}),
                cpu_fp32 = open_model(place / "model", {.compute = Compute::kFp32, .recipe = recipe});
    EXPECT_EQ(cpu.bits_per_weight(), gpu.bits_per_weight());
    for (const auto& [text, bound] : {std::pair{&few, kFewBound}, {&tokens, kManyBound}}) {
      const Tensor expected = read_at_once(cpu, *text, "fp16");
      // Inputs that are rounded to codes may meet another code: that costs less than rounding does.
      double most = bound;
      if (recipe.activations)
        most = distance(read_at_once(open_model(place / "model", {.recipe = Recipe{.scheme = recipe.scheme}}), *text, "fp16"), expected);
      EXPECT_LT(distance(expected, read_at_once(gpu, *text, "fp16")), most) << text->size() << " rows";
      EXPECT_LT(distance(read_at_once(cpu_fp32, *text, "fp32"), read_at_once(fp32, *text, "fp32")), kFp32Bound) << text->size() << " rows";
    }
  }
}

TEST(Decoder, ExpertsGiveTheLogitsOfTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  // Every token meets every expert: a choice between two that are all but equal could fall otherwise here.
  test::write_decoder(place / "model",
                      {.type = "mixtral", .hidden = 128, .intermediate = 256, .heads = 4, .head_dim = 32, .experts = 5, .per_token = 5});
  const auto tokens = test::random_tokens(90, 96, 4), few = test::random_tokens(9, 96, 5);
  for (const char* preset : {"FP8_DYNAMIC", "FP8_BLOCK"}) {
    SCOPED_TRACE(preset);
    const Recipe recipe = Recipe::of(preset);
    const Model cpu = open_model(place / "model", {.recipe = recipe}),
                gpu = open_model(place / "model", {.device = kDevice, .recipe = recipe});
    for (const auto* text : {&few, &tokens}) {
      const Tensor expected = read_at_once(cpu, *text, "fp16");
      // Inputs may meet another code here: that costs less than rounding them does.
      const double most =
          distance(read_at_once(open_model(place / "model", {.recipe = Recipe{.scheme = recipe.scheme}}), *text, "fp16"), expected);
      EXPECT_LT(distance(expected, read_at_once(gpu, *text, "fp16")), most) << text->size() << " rows";
    }
  }
  EXPECT_THROW(open_model(place / "model", {.device = kDevice}), Unsupported);
}

TEST(Decoder, RoutesAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream(0);
  for (const auto& [rows, experts, per_token, whole] :
       {std::tuple{1, 8, 2, true}, {7, 8, 1, true}, {130, 3, 3, false}, {1001, 60, 4, true}, {515, 256, 8, false}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << experts << " experts");
    constexpr std::int64_t kCols = 100;
    const std::int64_t choices = rows * per_token;
    const Tensor x = test::random_values(DType::kF32, {rows, kCols}, 1, 1.0f),
                 w = test::random_values(DType::kF32, {experts, kCols}, 2, 0.1f);
    const Tensor at = to_device(x, kDevice, stream), router = to_device(w, kDevice, stream);
    const auto empty = [](DType type, Shape shape) { return Tensor::empty(type, std::move(shape), kDevice); };
    const Tensor chosen = empty(DType::kI32, {choices}), shares = empty(DType::kF32, {choices}),
                 offsets = empty(DType::kI32, {experts + 1}), row_of = empty(DType::kI32, {choices}),
                 place_of = empty(DType::kI32, {choices}), logits = empty(DType::kF32, {rows, experts});
    check(launch_route({at.as<float>(), router.as<float>(), rows, kCols, experts, per_token, whole, logits.as<float>(),
                        chosen.as<std::int32_t>(), shares.as<float>()},
                       stream),
          "route");
    check(launch_order_routes({chosen.as<std::int32_t>(), choices, experts, per_token, offsets.as<std::int32_t>(),
                               row_of.as<std::int32_t>(), place_of.as<std::int32_t>()},
                              stream),
          "order_routes");
    const std::vector<model::Route> routes =
        model::route_rows(matmul(x, prepare(w)), {.count = experts, .per_token = per_token, .intermediate = 1, .shares_sum_to_one = whole});
    const Tensor begins = to_host(offsets, stream), rows_of = to_host(row_of, stream), places = to_host(place_of, stream),
                 parts = to_host(shares, stream), who = to_host(chosen, stream);
    for (int expert = 0; expert < experts; ++expert) {
      const std::int32_t* from = rows_of.as<std::int32_t>() + begins.as<std::int32_t>()[expert];
      const std::int32_t* to = rows_of.as<std::int32_t>() + begins.as<std::int32_t>()[expert + 1];
      const std::vector<std::int64_t>& expected = routes[static_cast<std::size_t>(expert)].rows;
      EXPECT_TRUE(std::equal(from, to, expected.begin(), expected.end())) << "expert " << expert;
    }
    for (std::int64_t i = 0; i < choices; ++i) {
      const std::int32_t place = places.as<std::int32_t>()[i], expert = who.as<std::int32_t>()[i];
      ASSERT_EQ(rows_of.as<std::int32_t>()[place], i / per_token);
      const model::Route& route = routes[static_cast<std::size_t>(expert)];
      EXPECT_NEAR(parts.as<float>()[i], route.shares[static_cast<std::size_t>(place - begins.as<std::int32_t>()[expert])], 1e-5f);
    }
  }
}

TEST(Decoder, ObserversSeeTheInputs) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const auto tokens = test::random_tokens(80, 96, 6);
  std::vector<std::pair<std::string, Tensor>> seen[2];
  for (int i = 0; i < 2; ++i) {
    const Model model = open_model(place / "model", {.device = i == 0 ? Device::cpu() : kDevice});
    KvCache kv = model.make_cache(KvCache::parse_scheme("fp16"));
    const Sequence sequence{tokens, &kv};
    model.forward({&sequence, 1}, Logits::kLast, [&](std::span<const std::string> modules, const Tensor& x) {
      for (const std::string& module : modules) seen[i].emplace_back(module, convert(x, DType::kF32));
    });
  }
  ASSERT_EQ(seen[0].size(), 14u);
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (std::size_t i = 0; i < seen[0].size(); ++i) {
    EXPECT_EQ(seen[0][i].first, seen[1][i].first);
    EXPECT_LT(distance(seen[0][i].second, seen[1][i].second), kManyBound) << seen[0][i].first;
  }
}

TEST(Decoder, GeneratesTheSameTokens) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  GenerateOptions options{.tokens = 40, .cache = KvCache::parse_scheme("fp16"), .stop_at_end = false};
  const auto prompt = test::random_tokens(5, 96, 7);
  const Model gpu = open_model(place / "model", {.device = kDevice});
  const Generation a = generate(open_model(place / "model"), prompt, options), b = generate(gpu, prompt, options);
  EXPECT_EQ(a.tokens, b.tokens);
  int seen = 0;
  const Generation stopped = generate(gpu, prompt, options, [&](std::int32_t) { return ++seen < 7; });
  EXPECT_EQ(stopped.tokens, std::vector<std::int32_t>(a.tokens.begin(), a.tokens.begin() + 7));
  options.sampling = {.temperature = 0.9, .top_k = 20, .top_p = 0.9, .seed = 5};
  EXPECT_EQ(generate(gpu, prompt, options).tokens, generate(gpu, prompt, options).tokens);
}

/// The logits of a text that is read into an empty cache token by token, each a step as one kernel.
Tensor read_by_steps(const model::DeviceDecoder& decoder, std::span<const std::int32_t> tokens, KvCache& kv) {
  const Stream stream = decoder.stream();
  const std::int64_t vocabulary = decoder.config().vocabulary, count = static_cast<std::int64_t>(tokens.size());
  kv.state().on_device->reserve(count, 0, stream);
  const CacheView view = kv.state().on_device->view();
  const Buffer views = Buffer::allocate(sizeof(view), kDevice), places = Buffer::allocate(2 * sizeof(std::int32_t), kDevice);
  copy_bytes(views.data(), &view, sizeof(view), stream);
  model::DeviceRows rows;
  rows.rows = rows.sequences = 1;
  rows.tokens = places.as<std::int32_t>();
  rows.positions = rows.tokens + 1;
  rows.caches = views.as<CacheView>();
  rows.kind = kv.state().on_device->kind();
  std::tie(rows.cosine, rows.sine) = decoder.rope_tables(count);
  const Tensor logits = Tensor::empty(DType::kF32, {1, vocabulary}, kDevice);
  const model::DecodeStep step(decoder, rows, logits);
  Tensor all = Tensor::empty(DType::kF32, {count, vocabulary});
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t place[] = {tokens[static_cast<std::size_t>(i)], i};
    copy_bytes(places.data(), place, sizeof(place), stream);
    step.enqueue(stream);
    copy_bytes(all.as<float>() + i * vocabulary, logits.data(), logits.byte_size(), stream);
    synchronize(stream);
  }
  kv.state().size = count;
  return all;
}

/// Steps as one kernel round no inputs of products: they differ from the CPU by the order and the rounding of sums in fp32, which attention
/// makes larger. Keys and values that are rounded may meet the next number of their type.
double step_bound(std::string_view cache) { return cache == "fp32" ? 4e-5 : (cache == "fp16" ? 0x1p-11 : 0x1p-9); }

constexpr std::int64_t kSteps = 5;

/// A text read by steps as one kernel, and steps of a loop after it, give the CPU's logits.
void expect_steps_of_the_cpu(const Model& cpu, const Model& gpu, const std::vector<std::int32_t>& text, const char* cache) {
  const model::DeviceDecoder& decoder = *gpu.state().on_device;
  KvCache kv = gpu.make_cache(KvCache::parse_scheme(cache)), on_cpu = cpu.make_cache(KvCache::parse_scheme(cache));
  const Tensor read = read_by_steps(decoder, text, kv);
  const Sequence sequence{text, &on_cpu};
  EXPECT_LT(distance(cpu.forward({&sequence, 1}), read), step_bound(cache)) << "while reading";
  KvCache* const caches[] = {&kv};
  model::DecodeLoop loop(decoder, caches, to_device(last_row(read), kDevice, decoder.stream()), {}, kSteps + 1);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::vector<std::int32_t> token = loop.tokens(step, 1);
    loop.step();
    const Sequence next{token, &on_cpu};
    EXPECT_LT(distance(cpu.forward({&next, 1}), to_host(loop.logits(), decoder.stream())), step_bound(cache)) << "step " << step;
  }
}

/// Steps of one kernel per operation, after a prompt, give the logits of passes over one row for the tokens that were chosen. Both round
/// the same inputs to the same 16 bits, and differ by the order of sums.
void expect_steps_of_passes(const Model& gpu, const std::vector<std::int32_t>& prompt, const char* cache) {
  const model::DeviceDecoder& decoder = *gpu.state().on_device;
  KvCache expected_cache = gpu.make_cache(KvCache::parse_scheme(cache)), kv = gpu.make_cache(KvCache::parse_scheme(cache));
  const Sequence expected{prompt, &expected_cache}, sequence{prompt, &kv};
  gpu.forward({&expected, 1});
  KvCache* const caches[] = {&kv};
  model::DecodeLoop loop(decoder, caches, decoder.forward_on_device({&sequence, 1}, Logits::kLast, {}), {}, kSteps + 1);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::vector<std::int32_t> token = loop.tokens(step, 1);
    loop.step();
    const Sequence next{token, &expected_cache};
    EXPECT_LT(distance(gpu.forward({&next, 1}), to_host(loop.logits(), decoder.stream())), kFewBound) << "step " << step;
  }
}

/// one_kernel: whether steps run so.
void expect_steps(const std::filesystem::path& place, const std::optional<Recipe>& recipe, const char* cache, bool one_kernel) {
  const Model gpu = open_model(place, {.device = kDevice, .recipe = recipe});
  const CacheKind kind = gpu.make_cache(KvCache::parse_scheme(cache)).state().on_device->kind();
  const std::optional<std::string> obstacle = model::DecodeStep::obstacle(*gpu.state().on_device, 1, kind);
  ASSERT_EQ(!obstacle, one_kernel) << obstacle.value_or("none");
  const std::vector<std::int32_t> text = test::random_tokens(37, gpu.config().vocabulary, 8);
  if (one_kernel)
    expect_steps_of_the_cpu(open_model(place, {.recipe = recipe}), gpu, text, cache);
  else
    expect_steps_of_passes(gpu, text, cache);
}

TEST(Decoder, StepsOfEveryArchitecture) {
  NARROW_REQUIRE_DEVICE();
  struct Case {
    test::Decoder decoder;
    bool one_kernel;
  };
  for (const Case& one :
       {Case{{}, true}, Case{{.type = "mistral", .extra = R"("sliding_window": 9,)"}, true},
        Case{{.type = "qwen2", .tied = true, .biases = true}, true}, Case{{.type = "qwen3", .head_dim = 32}, true},
        Case{{.hidden = 192, .intermediate = 200, .heads = 6, .kv_heads = 6, .head_dim = 128, .vocabulary = 331}, true},
        Case{{.hidden = 128, .heads = 14, .kv_heads = 2, .head_dim = 64}, true},
        Case{{.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 128}, true}, Case{{.heads = 3, .kv_heads = 1, .head_dim = 10}, false},
        Case{{.hidden = 4224, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 64}, true},
        Case{{.intermediate = 9000, .vocabulary = 40000}, true}}) {  // runs of several rows of chunks
    const test::TemporaryDirectory place;
    test::write_decoder(place / "model", one.decoder);
    for (const char* cache : {"fp32", "fp16", "bf16"}) {
      SCOPED_TRACE(::testing::Message() << one.decoder.type << " " << one.decoder.hidden << " " << cache);
      expect_steps(place / "model", std::nullopt, cache, one.one_kernel);
    }
  }
}

TEST(Decoder, StepsOfEveryScheme) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {.hidden = 384, .intermediate = 640, .heads = 4, .kv_heads = 2, .head_dim = 64});
  for (const auto& [scheme, one_kernel] :
       {std::pair{"int8:row", true}, {"int8:row:asym", true},    {"int4:block128", true}, {"int4:block64", true},
        {"int4:block32:asym", true}, {"int4:row", true},         {"int3:block128", true}, {"int2:block16", true},
        {"fp8_e4m3:row", true},      {"fp8_e4m3:128x128", true}, {"fp6_e3m2:row", true},  {"fp5_e2m2:row", true},
        {"fp4_e2m1:tensor", true},   {"fp3_e2m0:row", true},     {"mxfp4", true},         {"fp6_e2m3:row", false},
        {"int8:block32", true},      {"int8:block16", false},    {"nvfp4", false},        {"msfp12", false}}) {
    for (const char* cache : {"fp32", "fp16"}) {
      SCOPED_TRACE(::testing::Message() << scheme << " " << cache);
      expect_steps(place / "model", Recipe{.scheme = Scheme::parse(scheme)}, cache, one_kernel);
    }
  }
}

/// The draws of the device are those of the CPU's sample, logit for logit.
TEST(Decoder, DrawsAsTheCpuDoes) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  constexpr std::int64_t kVocabulary = 5003;
  Tensor logits = random_values(DType::kF32, {3, kVocabulary}, Values::kNormal, 11);
  for (std::int64_t i = 0; i < kVocabulary; ++i)
    logits.as<float>()[kVocabulary + i] = std::round(logits.as<float>()[kVocabulary + i]);  // ties
  const Tensor device = to_device(logits, kDevice, stream), state = Tensor::empty(DType::kI32, {2, 3}, kDevice);
  for (const SampleOptions& options :
       {SampleOptions{}, SampleOptions{.temperature = 1.0}, SampleOptions{.temperature = 0.7, .top_k = 50},
        SampleOptions{.temperature = 1.3, .top_p = 0.8}, SampleOptions{.temperature = 0.9, .top_k = 300, .top_p = 0.6, .seed = 9},
        SampleOptions{.temperature = 2.0, .top_k = 1}}) {
    set_bytes(state.data(), 0, state.byte_size(), stream);
    for (std::uint64_t step = 0; step < 20; ++step) {
      SampleProblem problem;
      problem.logits = device.as<float>();
      problem.rows = 3;
      problem.vocabulary = kVocabulary;
      problem.temperature = options.temperature;
      problem.top_k = options.top_k;
      problem.top_p = options.top_p;
      problem.seed = options.seed;
      problem.tokens = state.as<std::int32_t>();
      problem.step = state.as<std::int32_t>() + 3;
      check(launch_sample(problem, stream), "sample");
      const Tensor tokens = to_host(state, stream);
      for (int row = 0; row < 3; ++row) {
        const std::int32_t expected = sample({logits.as<float>() + row * kVocabulary, kVocabulary}, options, step);
        EXPECT_EQ(tokens.as<std::int32_t>()[row], expected)
            << "row " << row << ", step " << step << ", temperature " << options.temperature;
        EXPECT_EQ(tokens.as<std::int32_t>()[3 + row], static_cast<std::int32_t>(step) + 1);
      }
    }
  }
}

TEST(Decoder, BadCallsAreRefused) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "model", {});
  const Model cpu = open_model(place / "model"), gpu = open_model(place / "model", {.device = kDevice});
  KvCache on_cpu = cpu.make_cache(), on_gpu = gpu.make_cache();
  const std::vector<std::int32_t> good{1, 2}, bad{1, 96}, none;
  const auto call = [](const Model& model, std::vector<Sequence> sequences) { return model.forward(sequences); };
  EXPECT_THROW(call(gpu, {{good, &on_cpu}}), InvalidArgument);
  EXPECT_THROW(call(cpu, {{good, &on_gpu}}), InvalidArgument);
  EXPECT_THROW(call(gpu, {{bad, &on_gpu}}), InvalidArgument);
  EXPECT_THROW(call(gpu, {{none, &on_gpu}}), InvalidArgument);
  EXPECT_THROW(call(gpu, {{good, &on_gpu}, {good, &on_gpu}}), InvalidArgument);
  EXPECT_EQ(on_gpu.size(), 0);
  EXPECT_EQ(call(gpu, {}).size(), 0);
}

TEST(DecoderWithoutDevice, IsRefusedInOneSentence) {
  if (device_count() > 0) GTEST_SKIP() << "there is a device";
  EXPECT_THROW(open_model("nowhere", {.device = kDevice}), Unsupported);
}

}  // namespace
}  // namespace narrow::cuda::testing
