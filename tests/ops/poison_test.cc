/// Tensors that make scales go wrong elsewhere: NaN, infinities, subnormals, one value, zeros, the largest numbers. Every scheme either
/// refuses them by name or stores scales that are finite and positive; a zero scale is int1's zero row alone, as documented.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "narrow/error.h"
#include "narrow/quantize.h"

namespace narrow {
namespace {

constexpr std::int64_t kRows = 5, kCols = 160;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLargest = std::numeric_limits<float>::max();

struct Fill {
  const char* name;
  float (*value)(std::int64_t i);
  bool is_finite;
};

float wave(std::int64_t i) { return std::sin(0.7f * static_cast<float>(i)); }

const Fill kFills[] = {
    {"plain", wave, true},
    {"zeros", [](std::int64_t) { return 0.0f; }, true},
    {"minus zeros", [](std::int64_t) { return -0.0f; }, true},
    {"one value", [](std::int64_t) { return 0.3f; }, true},
    {"one negative value", [](std::int64_t) { return -7.0f; }, true},
    {"one element", [](std::int64_t i) { return i == 333 ? 2.0f : 0.0f; }, true},
    {"subnormals", [](std::int64_t i) { return wave(i) * 1e-40f; }, true},
    {"smallest subnormal", [](std::int64_t) { return std::numeric_limits<float>::denorm_min(); }, true},
    {"smallest beside zeros", [](std::int64_t i) { return i % 7 == 0 ? -std::numeric_limits<float>::denorm_min() : 0.0f; }, true},
    {"largest", [](std::int64_t i) { return i % 2 == 0 ? kLargest : -kLargest; }, true},
    {"1e38", [](std::int64_t i) { return wave(i) * 1e38f; }, true},
    {"1e38 beside 1e-38", [](std::int64_t i) { return i % 3 == 0 ? 1e38f : 1e-38f; }, true},
    {"one NaN", [](std::int64_t i) { return i == 333 ? NAN : wave(i); }, false},
    {"all NaN", [](std::int64_t) { return NAN; }, false},
    {"one infinity", [](std::int64_t i) { return i == 333 ? kInfinity : wave(i); }, false},
    {"infinities of both signs", [](std::int64_t i) { return i % 50 == 0   ? kInfinity
                                                             : i % 50 == 1 ? -kInfinity
                                                                           : wave(i); }, false},
};

Tensor filled(const Fill& fill) {
  Tensor x = Tensor::empty(DType::kF32, {kRows, kCols});
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = fill.value(i);
  return x;
}

void expect_good_scales(const QuantizedTensor& q, const std::string& what) {
  const std::size_t bytes = q.scheme.scale.bits / 8u;
  EXPECT_TRUE(std::isfinite(q.outer_scale) && q.outer_scale > 0.0f) << what;
  for (std::size_t i = 0; i * bytes < q.scales.size(); ++i) {
    std::uint32_t code = 0;
    std::memcpy(&code, q.scales.data() + i * bytes, bytes);
    const float scale = decode(q.scheme.scale, code);
    EXPECT_TRUE(std::isfinite(scale)) << what << " scale " << i;
    if (q.scheme.rule == ScaleRule::kMeanAbsolute) {
      EXPECT_GE(scale, 0.0f) << what;
    } else {
      EXPECT_GT(scale, 0.0f) << what << " scale " << i;
    }
  }
}

TEST(Poison, EverySchemeStoresGoodScalesOrRefuses) {
  int refused = 0, stored = 0;
  for (const Scheme& scheme : standard_schemes())
    for (const Fill& fill : kFills) {
      const std::string what = scheme.to_string() + ", " + fill.name;
      const Tensor x = filled(fill);
      try {
        const QuantizedTensor q = quantize(x, scheme);
        ++stored;
        expect_good_scales(q, what);
        const Tensor y = dequantize(q);
        for (std::int64_t i = 0; i < y.size() && fill.is_finite; ++i) {
          // Code times scale may round beyond fp32's range where the value lies within one step of its end.
          const bool at_the_end =
              std::fabs(x.as<float>()[i]) == kLargest && std::signbit(y.as<float>()[i]) == std::signbit(x.as<float>()[i]);
          EXPECT_TRUE(std::isfinite(y.as<float>()[i]) || (at_the_end && !std::isnan(y.as<float>()[i]))) << what << " element " << i;
        }
      } catch (const InvalidArgument& error) {
        ++refused;
        EXPECT_FALSE(fill.is_finite) << what << ": " << error.what();
      }
    }
  std::printf("poison: %d tensors stored, %d refused\n", stored, refused);
  EXPECT_GT(refused, 100);
}

TEST(Poison, SaturatingKeepsScalesOfTheFiniteValues) {
  for (const Scheme& scheme : standard_schemes())
    for (const Fill& fill : kFills) {
      const std::string what = scheme.to_string() + ", " + fill.name;
      const Tensor x = filled(fill);
      const QuantizedTensor q = quantize(x, scheme, {.nonfinite = NonFinite::kSaturate});
      expect_good_scales(q, what);
      if (fill.is_finite) continue;
      Tensor mended = filled(fill);
      for (std::int64_t i = 0; i < mended.size(); ++i)
        if (!std::isfinite(mended.as<float>()[i])) mended.as<float>()[i] = 0.0f;
      const QuantizedTensor clean = quantize(mended, scheme);
      if (scheme.rule == ScaleRule::kMeanAbsolute) continue;  // the mean is over all elements
      EXPECT_EQ(q.scales.size(), clean.scales.size());
      EXPECT_EQ(std::memcmp(q.scales.data(), clean.scales.data(), q.scales.size()), 0) << what;
    }
}

}  // namespace
}  // namespace narrow
