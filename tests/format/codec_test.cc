#include "narrow/codec.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace narrow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Every fpN_eEmM there is, and the named formats.
std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const NamedFormat& named : kNamedFormats)
    if (named.format.bits <= 16) formats.push_back(named.format);
  for (int e = 1; e <= 8; ++e)
    for (int m = 0; m <= 10 && 1 + e + m <= 16; ++m)
      formats.push_back(parse_format("fp" + std::to_string(1 + e + m) + "_e" + std::to_string(e) + "m" + std::to_string(m)));
  for (int bits = 2; bits <= 7; ++bits) formats.push_back(msfp_element(bits));
  formats.push_back(kMxInt8);
  return formats;
}

/// The most negative code of a symmetric integer decodes, but is never produced.
bool is_produced(const Format& format, std::uint32_t code) {
  if (format.is_integer() && format.is_signed) return code != 1u << (format.bits - 1);
  return true;
}

TEST(Codec, EveryCodeRoundTrips) {
  for (const Format& format : all_formats())
    for (std::uint32_t code = 0; code < format.code_count(); ++code) {
      const float value = decode(format, code);
      if (!std::isfinite(value) || !is_produced(format, code)) continue;
      for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic})
        ASSERT_EQ(encode(format, value, rounding, Overflow::kSaturate, 0), code) << name_of(format) << " " << value;
    }
}

TEST(Codec, FiniteCodesAreDistinctAndOrdered) {
  for (const Format& format : all_formats()) {
    if (!format.is_float()) continue;
    for (std::uint32_t code = 1; code <= format.max_code(); ++code)
      ASSERT_LT(decode(format, code - 1), decode(format, code)) << name_of(format) << " " << code;
  }
}

struct Range {
  const char* name;
  double largest, smallest_normal, smallest_subnormal;
};

/// The table of the numerics contract.
TEST(Codec, RangesOfTheNamedFormats) {
  const Range ranges[] = {{"fp8_e5m2", 57344, 0x1p-14, 0x1p-16},
                          {"fp8_e4m3", 448, 0x1p-6, 0x1p-9},
                          {"fp6_e3m2", 28, 0.25, 0.0625},
                          {"fp6_e2m3", 7.5, 1, 0.125},
                          {"fp5_e3m1", 24, 0.25, 0.125},
                          {"fp5_e2m2", 7, 1, 0.25},
                          {"fp4_e2m1", 6, 1, 0.5},
                          {"fp4_e3m0", 16, 0.25, 0.25},
                          {"fp3_e2m0", 4, 1, 1},
                          {"fp16", 65504, 0x1p-14, 0x1p-24},
                          {"bf16", 0x1.FEp127, 0x1p-126, 0x1p-133}};
  for (const Range& range : ranges) {
    const Format format = parse_format(range.name);
    EXPECT_EQ(format.largest(), range.largest) << range.name;
    EXPECT_EQ(decode(format, format.max_code()), static_cast<float>(range.largest)) << range.name;
    EXPECT_EQ(format.smallest_normal(), range.smallest_normal) << range.name;
    EXPECT_EQ(decode(format, 1), static_cast<float>(range.smallest_subnormal)) << range.name;
  }
  for (int e = 1; e <= 7; ++e)
    for (int m = 0; m <= 10 && 1 + e + m <= 16; ++m) {
      if ((e == 5 && m == 10)) continue;  // fp16, which has infinities
      const Format format = float_format(e, m);
      EXPECT_EQ(format.largest(), (2.0 - std::ldexp(1.0, -m)) * std::ldexp(1.0, (1 << e) - 1 - format.bias)) << name_of(format);
    }
}

TEST(Codec, GoldenCodes) {
  EXPECT_EQ(encode(kFp8E4m3, 1.0f), 0x38u);
  EXPECT_EQ(encode(kFp8E4m3, -448.0f), 0xFEu);
  EXPECT_EQ(encode(kFp8E4m3, 464.0f), 0x7Eu);  // half a step above the largest: saturates
  EXPECT_EQ(encode(kFp8E4m3, 17.0f), 0x58u);   // ties to the even code: 16
  EXPECT_EQ(encode(kFp8E4m3, 19.0f), 0x5Au);   // 20
  EXPECT_EQ(encode(kFp8E5m2, 1.0f), 0x3Cu);
  EXPECT_EQ(encode(kFp6E3m2, 0.0625f), 0x01u);
  EXPECT_EQ(encode(kFp4E2m1, 2.5f), 0x4u);  // between 2 (code 4) and 3 (code 5)
  EXPECT_EQ(encode(kFp4E2m1, 5.0f), 0x6u);  // between 4 (code 6) and 6 (code 7)
  EXPECT_EQ(encode(kFp4E3m0, 3.0f), 0x4u);  // between 2 (code 4) and 4 (code 5)
  EXPECT_EQ(encode(kFp4E3m0, 6.0f), 0x6u);  // between 4 (code 5) and 8 (code 6)
  EXPECT_EQ(encode(kInt8, 63.5f), 64u);
  EXPECT_EQ(encode(kInt8, -128.0f), 0x81u);  // the symmetric range is narrow
  EXPECT_EQ(encode(kInt1, -0.0f), 0u);
  EXPECT_EQ(encode(kInt1, 1e-45f), 1u);
  EXPECT_EQ(encode(kNf4, 0.0f), 7u);
  EXPECT_EQ(encode(kE8m0, 1.0f), 127u);
  EXPECT_EQ(encode(kE8m0, 1.5f), 128u);  // a tie between codes 127 and 128
}

TEST(Codec, SignsAndSpecials) {
  for (const Format& format : all_formats()) {
    if (!format.is_float()) continue;
    const std::uint32_t sign = 1u << (format.bits - 1);
    EXPECT_EQ(encode(format, -0.0f), sign) << name_of(format);
    EXPECT_TRUE(std::signbit(decode(format, sign))) << name_of(format);
    EXPECT_EQ(encode(format, kInfinity), format.max_code()) << name_of(format);
    EXPECT_EQ(encode(format, -kInfinity), sign | format.max_code()) << name_of(format);
    const float beyond = decode(format, encode(format, kInfinity, Rounding::kNearestEven, Overflow::kIeee));
    const float nan = decode(format, encode(format, kNan));
    switch (format.specials) {
      case Specials::kIeee: EXPECT_TRUE(std::isinf(beyond) && std::isnan(nan)) << name_of(format); break;
      case Specials::kNanOnly: EXPECT_TRUE(std::isnan(beyond) && std::isnan(nan)) << name_of(format); break;
      case Specials::kNone: EXPECT_TRUE(beyond == static_cast<float>(format.largest()) && nan == 0.0f) << name_of(format); break;
    }
  }
}

TEST(Codec, StochasticRoundingIsFairAndReproducible) {
  const float x = 17.7f;  // between 16 and 18 in fp8_e4m3: 85 % go up
  int up = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const std::uint32_t random = random_bits(7, static_cast<std::uint64_t>(i));
    const float value = decode(kFp8E4m3, encode(kFp8E4m3, x, Rounding::kStochastic, Overflow::kSaturate, random));
    ASSERT_TRUE(value == 16.0f || value == 18.0f);
    up += value == 18.0f ? 1 : 0;
  }
  EXPECT_NEAR(up, 0.85 * kDraws, 5.0 * std::sqrt(kDraws * 0.85 * 0.15));
  std::set<std::uint32_t> words;
  for (std::uint64_t i = 0; i < 1000; ++i) words.insert(random_bits(1, i)), words.insert(random_bits(1, i + (std::uint64_t{1} << 32)));
  EXPECT_GT(words.size(), 1990u);
}

}  // namespace
}  // namespace narrow
