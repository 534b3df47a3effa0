// What is folded into a model: the function stays, the quantized model gains; and what cannot be composed.
#include <cmath>

#include "io/files.h"
#include "methods/answers.h"
#include "methods/outlier_model.h"
#include "methods/rotation.h"
#include "model/small_model.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

class Folding : public testing::Test {
 protected:
  void write(const test::Decoder& decoder) {
    test::write_decoder(place_ / "in", decoder);
    for (unsigned seed = 0; seed < 6; ++seed) windows_.push_back(test::random_tokens(40, 96, seed));
  }
  double error(const fs::path& path, std::string_view base = "in") const { return test::answer_error(place_ / base, path, windows_); }
  fs::path quantized(std::string_view input, const std::string& recipe, const std::string& method) {
    const fs::path out = place_ / fmt::format("out{}", ++count_);
    quantize_checkpoint(place_ / input, out, Recipe::of(recipe), Method::parse(method), {.windows = windows_});
    EXPECT_TRUE(verify_checkpoint(out).problems.empty());
    EXPECT_EQ(std::distance(fs::directory_iterator(place_.path()), fs::directory_iterator{}), entries_ + count_) << "left behind";
    return out;
  }
  std::string message(const Recipe& recipe, const Method& method, const Calibration& calibration) {
    try {
      quantize_checkpoint(place_ / "in", place_ / "refused", recipe, method, calibration,
                          {.fitted = [&](const FittedModule&, std::size_t, std::size_t) { ADD_FAILURE() << "computed"; }});
    } catch (const std::exception& error) {
      EXPECT_FALSE(fs::exists(place_ / "refused"));
      return error.what();
    }
    return "accepted";
  }
  test::TemporaryDirectory place_;
  test::Windows windows_;
  int count_ = 0, entries_ = 1;
};

TEST_F(Folding, ScaledChannelsKeepTheFunction) {
  for (const bool biases : {false, true}) {
    fs::remove_all(place_ / "in");
    fs::remove_all(place_ / "scaled");
    write({.type = biases ? "qwen2" : "llama", .biases = biases, .dtype = DType::kF32});
    const ModelConfig config = read_model_config(open_checkpoint(place_ / "in"));
    ChannelFactors factors = test::outlier_factors(config);
    for (const std::int64_t layer : {0, 1}) {
      std::vector<float>& up = factors[fmt::format("model.layers.{}.mlp.up_proj", layer)];
      for (std::int64_t i = 0; i < config.intermediate; ++i) up.push_back(0.5f + 0.01f * static_cast<float>(i));
      std::vector<float>& v = factors[fmt::format("model.layers.{}.self_attn.v_proj", layer)];
      for (std::int64_t i = 0; i < config.kv_heads * config.head_dim; ++i) v.push_back(2.0f - 0.05f * static_cast<float>(i));
    }
    scale_channels(place_ / "in", place_ / "scaled", factors);
    EXPECT_LT(error(place_ / "scaled"), 1e-9);
    EXPECT_NE(test::read_bytes(place_ / "in" / "model.safetensors"), test::read_bytes(place_ / "scaled" / "model.safetensors"));
  }
  EXPECT_THROW(scale_channels(place_ / "in", place_ / "no", {{"model.layers.0.mlp.gate_proj", std::vector<float>(128, 1.0f)}}),
               InvalidArgument);
  EXPECT_THROW(scale_channels(place_ / "in", place_ / "no", {{"model.layers.0.mlp.up_proj", {1.0f}}}), InvalidArgument);
  EXPECT_FALSE(fs::exists(place_ / "no"));
}

TEST_F(Folding, SmoothQuantTakesOutliersOutOfRoundedInputs) {
  write({.dtype = DType::kF32});
  test::write_outlier_model(place_ / "in", place_ / "outliers");
  entries_ = 2;
  for (const char* recipe : {"W8A8", "W8A8-static"}) {
    const double before = error(quantized("outliers", recipe, "clip")), after = error(quantized("outliers", recipe, "smoothquant"));
    EXPECT_LT(after, 0.2 * before) << recipe;
  }
}

TEST_F(Folding, AwqSparesChannelsWithLargeInputs) {
  write({.dtype = DType::kF32});
  test::write_outlier_model(place_ / "in", place_ / "outliers");
  entries_ = 2;
  EXPECT_LT(error(quantized("outliers", "int4:row", "awq")), 0.6 * error(quantized("outliers", "int4:row", "clip")));
  EXPECT_LT(error(quantized("outliers", "int4:row", "awq+gptq+clip")), 0.6 * error(quantized("outliers", "int4:row", "clip")));
}

TEST_F(Folding, RotationKeepsTheFunctionAndSpreadsOutliers) {
  write({.type = "qwen2", .biases = true, .dtype = DType::kF32});
  test::write_outlier_model(place_ / "in", place_ / "outliers");
  entries_ = 2;
  EXPECT_LT(error(quantized("in", "fp16:row", "rotate")), 1e-6);
  EXPECT_LT(error(quantized("outliers", "W8A8", "rotate")), 0.2 * error(quantized("outliers", "W8A8", "clip")));
}

TEST(Rotation, IsOrthogonal) {
  for (const std::int64_t n : {1, 2, 3, 64, 96, 384, 1000}) {
    const Tensor x = test::random_values(DType::kF32, {3, n}, 5, 1.0f), y = test::random_values(DType::kF32, {3, n}, 5, 1.0f);
    double before = 0.0, after = 0.0;
    for (std::int64_t i = 0; i < n; ++i) before += static_cast<double>(x.as<float>()[i]) * static_cast<double>(x.as<float>()[n + i]);
    rotate_rows(y.as<float>(), 3, n, false);
    for (std::int64_t i = 0; i < n; ++i) after += static_cast<double>(y.as<float>()[i]) * static_cast<double>(y.as<float>()[n + i]);
    EXPECT_NEAR(before, after, 1e-4) << n;
    rotate_rows(y.as<float>(), 3, n, true);
    EXPECT_LT(compare(x, y).max_absolute, 1e-5) << n;
  }
  Tensor spike = test::random_values(DType::kF32, {1, 384}, 5, 0.0f);
  spike.as<float>()[7] = 1.0f;
  rotate_rows(spike.as<float>(), 1, 384, false);
  for (std::int64_t i = 0; i < 384; ++i) EXPECT_LT(std::fabs(spike.as<float>()[i]), 0.08f);
}

TEST_F(Folding, WrongCompositionsFailBeforeAnyComputation) {
  write({});
  const Calibration text{.windows = windows_};
  const Recipe recipe = Recipe::of("int4:block32"), rounded = Recipe::of("W8A8");
  EXPECT_THAT(message(recipe, Method::parse("awq"), {}), testing::HasSubstr("awq needs a text to calibrate with"));
  EXPECT_THAT(message(recipe, Method::parse("smoothquant"), text), testing::HasSubstr("name activations, or use awq"));
  EXPECT_THAT(message(rounded, Method::parse("smoothquant+awq"), text), testing::HasSubstr("choose awq for weights alone"));
  EXPECT_THAT(message(Recipe::of("int4:block24"), Method::parse("gptq"), text),
              testing::HasSubstr("blocks of 24 do not divide the 128 columns"));
  Recipe unknown = recipe;
  unknown.rules.emplace_back("model.layers.9.mlp.down_proj", Scheme::parse("int8:row"));
  EXPECT_THAT(message(unknown, Method::parse("gptq"), text), testing::HasSubstr("'model.layers.9.mlp.down_proj' matches no tensor"));
  Method strong = Method::parse("smoothquant");
  strong.strength = 1.5;
  EXPECT_THAT(message(rounded, strong, text), testing::HasSubstr("1.5 is not between 0 and 1"));
  strong = Method::parse("awq");
  strong.strength = 0.5;
  EXPECT_THAT(message(recipe, strong, text), testing::HasSubstr("the strength is smoothquant's"));
  const CalibrationStatistics nothing;
  EXPECT_THAT(message(rounded, Method::parse("smoothquant"), {.statistics = &nothing}), testing::HasSubstr("or a strength"));
  EXPECT_THAT(message(rounded, Method::parse("rotate+gptq"), {.statistics = &nothing}),
              testing::HasSubstr("statistics of the plain model do not fit"));
  Recipe scaled = Recipe::of("W8A8-static");
  scaled.activations->scales["model.layers.0.mlp.down_proj"] = {};
  EXPECT_THAT(message(scaled, Method::parse("smoothquant"), text), testing::HasSubstr("static scales of the plain model do not fit"));
  fs::remove_all(place_ / "in");
  write({.tied = true});
  EXPECT_THAT(message(recipe, Method::parse("rotate"), {}), testing::HasSubstr("the model's head is its embedding"));
}

TEST_F(Folding, TensorsMustHaveTheShapesOfTheConfiguration) {
  write({});
  const std::string good = test::read_bytes(place_ / "in" / "config.json");
  for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "vocab_size"}) {
    const std::size_t place = good.find(':', good.find(key)) + 2, end = good.find_first_of(",}", place);
    const std::string larger = std::to_string(4 * std::stoll(good.substr(place, end - place)));
    test::write_bytes(place_ / "in" / "config.json", good.substr(0, place) + larger + good.substr(end));
    EXPECT_THAT(message(Recipe::of("int4:block32"), Method::parse("rotate"), {}), testing::HasSubstr("config.json asks for")) << key;
    EXPECT_THROW(scale_channels(place_ / "in", place_ / "refused", {{"model.layers.0.mlp.up_proj", {1.0f}}}), CorruptFile) << key;
  }
}

}  // namespace
}  // namespace narrow
