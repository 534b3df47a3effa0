#include "format/elementary.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <gtest/gtest.h>

namespace narrow {
namespace {

/// Every 1009th fp32 number that is finite.
template <typename Check>
void for_many_floats(const Check& check) {
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 1009) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(x)) check(x);
  }
}

TEST(Elementary, ExpIsWithinOneUnitInTheLastPlace) {
  double worst = 0.0;
  for_many_floats([&](float x) {
    if (x < ExpConstants::kLowest || x > ExpConstants::kHighest) {
      ASSERT_EQ(exp_f32(x), x < 0.0f ? 0.0f : std::numeric_limits<float>::infinity());
      return;
    }
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(exp_f32(x) - exact) / std::ldexp(1.0, std::ilogb(exact) - 23));
  });
  EXPECT_LT(worst, 1.0);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0f);
}

TEST(Elementary, ActivationsStayWithinTheirBounds) {
  double silu_relative = 0.0, gelu_relative = 0.0, silu_absolute = 0.0, gelu_absolute = 0.0;
  for_many_floats([&](float value) {
    const double x = value, u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    const double silu = x / (1.0 + std::exp(-x)), gelu = 0.5 * x * std::erfc(-x / std::numbers::sqrt2),
                 tanh = x / (1.0 + std::exp(-2.0 * u));
    const auto absolute = [](double y, double exact) { return std::fabs(y - exact) / std::max(std::fabs(exact), 1.0); };
    silu_absolute = std::max(silu_absolute, absolute(silu_f32(value), silu));
    gelu_absolute = std::max({gelu_absolute, absolute(gelu_f32(value), gelu), absolute(gelu_tanh_f32(value), tanh)});
    if (std::fabs(x) >= 8.0 || std::fabs(x) < 1e-30) return;
    silu_relative = std::max(silu_relative, std::fabs(silu_f32(value) - silu) / std::fabs(silu));
    gelu_relative = std::max(
        {gelu_relative, std::fabs(gelu_f32(value) - gelu) / std::fabs(gelu), std::fabs(gelu_tanh_f32(value) - tanh) / std::fabs(tanh)});
  });
  EXPECT_LT(silu_relative, 2e-7);
  EXPECT_LT(gelu_relative, 1e-5);
  EXPECT_LT(silu_absolute, 2e-7);
  EXPECT_LT(gelu_absolute, 2e-7);
}

}  // namespace
}  // namespace narrow
