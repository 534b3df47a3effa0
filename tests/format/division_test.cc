/// The GPU's short division for 16-bit values, proved over all significands: x / s = fma(x, high, x * low) with 1/s = high + low.
/// It may differ from the IEEE quotient in the last bit, but never where a code could change.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include <gtest/gtest.h>

namespace {

#if defined(__x86_64__)
#define NARROW_WITH_FMA __attribute__((target("avx2,fma")))
#else
#define NARROW_WITH_FMA
#endif

struct Reciprocal {
  float high, low;
};

/// As kernels/cuda/divide.cuh makes it.
NARROW_WITH_FMA Reciprocal reciprocal(float s) {
  float high = static_cast<float>(1.0 / static_cast<double>(s));
  if (static_cast<double>(high) * static_cast<double>(s) > 1.0) high = std::nextafter(high, 0.0f);  // toward zero; the product is exact
  const float low = __builtin_fmaf(-s, high, 1.0f) * high;
  return {high, std::bit_cast<float>(std::bit_cast<std::uint32_t>(low) + (low != 0.0f ? 1u : 0u))};
}

/// How many of the 1024 significands of fp16 (bf16's are among them) have another quotient.
NARROW_WITH_FMA int count_differences(float s, const Reciprocal& r) {
  int count = 0;
  for (int i = 0; i < 1024; ++i) {
    const float x = 1.0f + static_cast<float>(i) * 0x1p-10f;
    count += __builtin_fmaf(x, r.high, x * r.low) != x / s ? 1 : 0;
  }
  return count;
}

/// Codes of the fast formats have at most 7 significant bits (int8), so the quotients at which they change, the middles of two of
/// them, have at most 8: the other 16 bits of the significand are zero.
NARROW_WITH_FMA bool is_near_boundary(float s, const Reciprocal& r) {
  for (int i = 0; i < 1024; ++i) {
    const float x = 1.0f + static_cast<float>(i) * 0x1p-10f;
    const float a = __builtin_fmaf(x, r.high, x * r.low), b = x / s;
    if (a == b) continue;
    constexpr std::uint32_t kRest = (1u << 16) - 1u;
    if ((std::bit_cast<std::uint32_t>(a) & kRest) == 0 || (std::bit_cast<std::uint32_t>(b) & kRest) == 0) return true;
  }
  return false;
}

TEST(Division, ShortFormNeverMovesACode) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "no FMA";
#endif
  std::int64_t differences = 0, bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : differences, bad)
  for (int i = 0; i < 1 << 23; ++i) {
    const float s = 1.0f + static_cast<float>(i) * 0x1p-23f;
    const Reciprocal r = reciprocal(s);
    const int found = count_differences(s, r);
    if (found == 0) continue;
    differences += found;
    if (is_near_boundary(s, r)) ++bad;
  }
  EXPECT_EQ(bad, 0);

  EXPECT_LT(differences, 100000) << "of 2^33: the form is worse than its analysis";
  std::printf("quotients that differ in their last bit: %lld of 2^33\n", static_cast<long long>(differences));
}

/// amax / largest as kernels/cuda/divide.cuh makes it, for every largest value that it is used with: x / c, correctly rounded.
NARROW_WITH_FMA int count_wrong_quotients(float constant) {
  const float reciprocal = 1.0f / constant;
  int wrong = 0;
  for (int i = 0; i < 1 << 23; ++i) {
    const float x = 1.0f + static_cast<float>(i) * 0x1p-23f;
    const float q = x * reciprocal;
    wrong += __builtin_fmaf(__builtin_fmaf(-constant, q, x), reciprocal, q) != x / constant ? 1 : 0;
  }
  return wrong;
}

TEST(Division, ByTheLargestValuesIsExact) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "no FMA";
#endif
  for (const float largest : {448.0f, 57344.0f, 28.0f, 7.5f, 7.0f, 6.0f, 127.0f}) EXPECT_EQ(count_wrong_quotients(largest), 0) << largest;
}

}  // namespace
