// Observers: histograms that double and join, ranges by every method, statistics as files.
#include "narrow/calibrate.h"

#include <cmath>
#include <random>

#include "io/files.h"
#include "narrow/error.h"

namespace narrow {
namespace {

std::vector<float> normal_values(std::size_t count, float spread, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

TEST(StreamingHistogram, AnyCutGivesTheSameBins) {
  std::vector<float> values = normal_values(5000, 0.01f, 1);
  for (const float value : normal_values(3000, 3.0f, 2)) values.push_back(value);
  values.push_back(-700.0f);
  values.push_back(0.0f);
  StreamingHistogram whole, parts, joined;
  whole.add(values);
  for (std::size_t i = 0; i < values.size(); i += 37) {
    StreamingHistogram part;
    part.add(std::span(values).subspan(i, std::min<std::size_t>(37, values.size() - i)));
    parts.add(std::span(values).subspan(i, std::min<std::size_t>(37, values.size() - i)));
    joined.merge(part);
  }
  EXPECT_EQ(whole.exponent(), 10);
  EXPECT_EQ(whole.count(), static_cast<std::int64_t>(values.size()));
  for (const StreamingHistogram* other : {&parts, &joined}) {
    EXPECT_EQ(other->exponent(), whole.exponent());
    EXPECT_EQ(other->bins(), whole.bins());
    EXPECT_EQ(other->count(), whole.count());
  }
  std::int64_t total = 0;
  for (const std::int64_t count : whole.magnitudes()) total += count;
  EXPECT_EQ(total, whole.count());
}

TEST(StreamingHistogram, IgnoresWhatIsNoNumber) {
  StreamingHistogram histogram;
  histogram.add(std::vector<float>{1.0f, NAN, INFINITY, -INFINITY, -2.0f});
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.exponent(), 2);
}

InputStatistics statistics_of(const std::vector<float>& values, std::int64_t channels, std::size_t batches, bool moments = false) {
  InputStatistics s;
  const std::size_t rows = values.size() / static_cast<std::size_t>(channels) / batches;
  for (std::size_t b = 0; b < batches; ++b)
    s.add(Tensor::borrow(values.data() + b * rows * static_cast<std::size_t>(channels), DType::kF32,
                         {static_cast<std::int64_t>(rows), channels}),
          moments);
  return s;
}

TEST(InputStatistics, HoldsWhatItSaw) {
  const std::vector<float> values = normal_values(64 * 10, 1.0f, 3);
  const InputStatistics s = statistics_of(values, 10, 4, true);
  EXPECT_EQ(s.tokens, 64);
  EXPECT_EQ(s.batches, 4);
  EXPECT_EQ(s.minimum, *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(s.maximum, *std::max_element(values.begin(), values.end()));
  double average = 0.0;
  for (int b = 0; b < 4; ++b)
    average += static_cast<double>(*std::max_element(values.begin() + b * 160, values.begin() + (b + 1) * 160)) / 4.0;
  EXPECT_NEAR(s.average_maximum, average, 1e-12);
  for (std::size_t c = 0; c < 10; ++c) {
    float largest = 0.0f;
    double moment = 0.0;
    for (std::size_t r = 0; r < 64; ++r) {
      largest = std::max(largest, std::fabs(values[r * 10 + c]));
      moment += static_cast<double>(values[r * 10 + c]) * static_cast<double>(values[r * 10 + 3]);
    }
    EXPECT_EQ(s.channel_max[c], largest);
    EXPECT_NEAR(s.second_moment[c * 10 + 3], moment, 1e-4);
    EXPECT_NEAR(s.second_moment[3 * 10 + c], moment, 1e-4);
  }
  InputStatistics first = statistics_of({values.begin(), values.begin() + 320}, 10, 2, true);
  first.merge(statistics_of({values.begin() + 320, values.end()}, 10, 2, true));
  EXPECT_EQ(first.histogram.bins(), s.histogram.bins());
  EXPECT_EQ(first.channel_max, s.channel_max);
  EXPECT_EQ(first.minimum, s.minimum);
  EXPECT_EQ(first.tokens, s.tokens);
  EXPECT_NEAR(first.average_maximum, s.average_maximum, 1e-9);
  EXPECT_NEAR(first.second_moment[7], s.second_moment[7], 1e-4);
  InputStatistics other = statistics_of(values, 5, 1);
  EXPECT_THROW(first.merge(other), InvalidArgument);
}

/// Normal values and one far outlier: what each method makes of it.
TEST(Range, EveryMethodGivesItsRange) {
  std::vector<float> values = normal_values(100000, 1.0f, 4);
  values[5] = 50.0f;
  const InputStatistics s = statistics_of(values, 10, 10);
  const Scheme scheme = Scheme::parse("int8:tensor");
  const auto limit = [&](const char* method) {
    return 127.0 * static_cast<double>(static_scale(s, scheme, RangeMethod::parse(method)).scale);
  };
  EXPECT_NEAR(limit("minmax"), 50.0, 1e-4);
  EXPECT_LT(limit("average"), 10.0);
  EXPECT_NEAR(limit("percentile"), 3.29, 0.1);
  EXPECT_NEAR(limit("percentile=99"), 2.576, 0.08);
  EXPECT_NEAR(limit("percentile=100"), 50.0, 0.1);
  EXPECT_GT(limit("mse"), 3.0);
  EXPECT_LT(limit("mse"), 50.0);
  EXPECT_GT(limit("entropy"), 2.0);
  EXPECT_LT(limit("entropy"), 20.0);
  // The chosen limit has no more error than its neighbours or the extremes.
  const auto error_at = [&](double largest) {
    double sum = 0.0;
    for (const float value : values) {
      const double step = largest / 127.0, code = std::clamp(std::nearbyint(static_cast<double>(value) / step), -127.0, 127.0);
      sum += std::pow(static_cast<double>(value) - code * step, 2);
    }
    return sum;
  };
  const double chosen = error_at(limit("mse"));
  for (const double other : {50.0, 3.0, limit("mse") * 1.3, limit("mse") * 0.7}) EXPECT_LE(chosen, error_at(other) * 1.01) << other;
}

TEST(Range, AsymmetricAndOuterScales) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 100.0f - 2.0f;  // -2 .. 7.99
  const InputStatistics s = statistics_of(values, 10, 1);
  const StaticScale asymmetric = static_scale(s, Scheme::parse("int8:tensor:asym"), RangeMethod::parse("minmax"));
  EXPECT_NEAR(asymmetric.scale, 9.99f / 255.0f, 1e-6f);
  EXPECT_EQ(asymmetric.zero_point, 51);
  EXPECT_NEAR(static_scale(s, Scheme::parse("nvfp4"), RangeMethod::parse("minmax")).scale, 7.99f / (6.0f * 448.0f), 1e-7f);
  EXPECT_EQ(static_scale(statistics_of(std::vector<float>(10, 0.0f), 10, 1), Scheme::parse("int8:tensor"), RangeMethod::parse("mse")).scale,
            1.0f);
}

TEST(Range, NamesRoundTrip) {
  for (const char* name : {"minmax", "average", "percentile=99.99", "entropy", "mse"})
    EXPECT_EQ(RangeMethod::parse(name).to_string(), name);
  EXPECT_EQ(RangeMethod::parse("percentile").percentile, 99.9);
  for (const char* wrong : {"", "max", "percentile=", "percentile=0", "percentile=101", "percentile=9x"})
    EXPECT_THROW(RangeMethod::parse(wrong), InvalidArgument) << wrong;
}

TEST(CalibrationStatistics, FilesRoundTripAndJoin) {
  const test::TemporaryDirectory place;
  const std::vector<float> values = normal_values(600, 2.0f, 5);
  CalibrationStatistics s;
  const std::vector<std::string> qkv{"l.q_proj", "l.k_proj", "l.v_proj"}, down{"l.down_proj"};
  s.add(qkv, Tensor::borrow(values.data(), DType::kF32, {20, 10}), false);
  s.add(down, Tensor::borrow(values.data() + 200, DType::kF32, {20, 20}), true);
  s.save(place / "stats.safetensors");
  const CalibrationStatistics back = CalibrationStatistics::load(place / "stats.safetensors");
  EXPECT_EQ(back.shared, s.shared);
  EXPECT_EQ(back.inputs.size(), 2u);
  for (const char* module : {"l.k_proj", "l.down_proj"}) {
    EXPECT_EQ(back.of(module).histogram.bins(), s.of(module).histogram.bins());
    EXPECT_EQ(back.of(module).channel_max, s.of(module).channel_max);
    EXPECT_EQ(back.of(module).second_moment, s.of(module).second_moment);
    EXPECT_EQ(back.of(module).minimum, s.of(module).minimum);
    EXPECT_EQ(back.of(module).tokens, s.of(module).tokens);
  }
  EXPECT_THROW(back.of("other"), InvalidArgument);
  CalibrationStatistics twice = back;
  twice.merge(s);
  EXPECT_EQ(twice.of("l.v_proj").tokens, 40);

  ActivationRecipe recipe{.scheme = ActivationScheme::parse("int8:tensor:static"),
                          .rules = {{"down_proj", ActivationScheme::parse("int8:row:dynamic")}}};
  set_static_scales(recipe, back, RangeMethod::parse("minmax"));
  EXPECT_EQ(recipe.scales.size(), 3u);
  EXPECT_FALSE(recipe.scales.contains("l.down_proj"));
  write_safetensors(place / "other.safetensors", {{"x", Tensor::of({1.0f}, {1})}});
  EXPECT_THROW(CalibrationStatistics::load(place / "other.safetensors"), CorruptFile);
}

TEST(Presets, EveryOneParses) {
  EXPECT_GE(presets().size(), 12u);
  for (const Preset& preset : presets()) {
    const Recipe recipe = Recipe::of(preset.name);
    EXPECT_EQ(recipe.scheme, Scheme::parse(preset.weights)) << preset.name;
    EXPECT_EQ(recipe.activations.has_value(), !preset.activations.empty()) << preset.name;
    if (recipe.activations) {
      EXPECT_EQ(recipe.activations->scheme.to_string(), preset.activations);
    }
  }
  EXPECT_EQ(Recipe::of("W8A8_static").activations->scheme.to_string(), "int8:tensor:static");
  EXPECT_FALSE(Recipe::of("nvfp4").activations);  // the scheme, not the preset
  EXPECT_THROW(Recipe::of("W9A9"), InvalidArgument);
}

TEST(ActivationScheme, ParsesAndRefuses) {
  for (const char* text :
       {"int8:row:dynamic", "int8:tensor:static", "fp8_e4m3:block128:dynamic", "nvfp4:static", "mxfp4:dynamic", "int8:tensor:asym:static"})
    EXPECT_EQ(ActivationScheme::parse(text).to_string(), text);
  EXPECT_EQ(ActivationScheme::parse("int8:row").to_string(), "int8:row:dynamic");
  for (const char* text :
       {"int8:tensor:dynamic", "int8:row:static", "nvfp4:dynamic", "fp8_e4m3:128x128:dynamic", "int8:col:dynamic", "static", ""})
    EXPECT_THROW(ActivationScheme::parse(text), InvalidArgument) << text;
}

}  // namespace
}  // namespace narrow
