/// Divisions by a scale without dividing, proved over all significands that matter: x / s = fma(x, high, x * low) with 1/s = high + low.
/// The quotient may differ from the IEEE one in the last bit, but never where a code could change. First the GPU's, for 16-bit values.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include <gtest/gtest.h>

namespace {

struct Reciprocal {
  float high, low;
};

/// As kernels/cuda/divide.cuh makes it.
Reciprocal reciprocal(float s) {
  float high = static_cast<float>(1.0 / static_cast<double>(s));
  if (static_cast<double>(high) * static_cast<double>(s) > 1.0) high = std::nextafter(high, 0.0f);  // toward zero; the product is exact
  const float low = __builtin_fmaf(-s, high, 1.0f) * high;
  return {high, std::bit_cast<float>(std::bit_cast<std::uint32_t>(low) + (low != 0.0f ? 1u : 0u))};
}

/// How many of the 1024 significands of fp16 (bf16's are among them) have another quotient.
int count_differences(float s, const Reciprocal& r) {
  int count = 0;
  for (int i = 0; i < 1024; ++i) {
    const float x = 1.0f + static_cast<float>(i) * 0x1p-10f;
    count += __builtin_fmaf(x, r.high, x * r.low) != x / s ? 1 : 0;
  }
  return count;
}

/// Codes of the fast formats have at most 7 significant bits (int8), so the quotients at which they change, the middles of two of
/// them, have at most 8: the other 16 bits of the significand are zero.
bool is_near_boundary(float s, const Reciprocal& r) {
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

/// The short form of the CPU for fp32 values: x * high + x * low with high = RN(1 / s), low = RN((1 - s * high) / s), in two operations
/// (kernels/cpu/quantize/scales.inl). Before its last rounding it is off by less than 2^-44 of the quotient, so that it can differ from
/// the IEEE quotient only where the true quotient is that near to the middle of two neighbouring floats; and a code changes only where one
/// of these two is the boundary of a code, a number m of at most 12 significant bits. All such x and s are enumerated:
/// with significands X, S, M in [2^23, 2^24) the quotient is within d / (S * 2^k) of the middle next to m if X * 2^k = S * (2 M +- 1) + d,
/// k = 24 where X >= S and 25 where not. As 2 M +- 1 is odd, M, d and k leave at most one S.
struct Candidates {
  std::int64_t count = 0, wrong = 0;

  void test(std::uint64_t odd, int k, int d) {
    std::uint64_t inverse = odd;  // of an odd number modulo 2^64: every step doubles the right bits
    for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
    const std::uint64_t below = (std::uint64_t{1} << k) - 1u, significand = (static_cast<std::uint64_t>(-d) * inverse) & below;
    if (significand < 1u << 23 || significand >= 1u << 24) return;
    const std::uint64_t product = significand * odd + static_cast<std::uint64_t>(d);
    ASSERT_EQ(product & below, 0u);
    if (product >> k < 1u << 23 || product >> k >= 1u << 24) return;
    compare(static_cast<float>(product >> k), static_cast<float>(significand));
  }

  void compare(float x, float s) {
    const float high = 1.0f / s, low = __builtin_fmaf(-s, high, 1.0f) / s;
    ++count;
    wrong += __builtin_fmaf(x, high, x * low) != x / s ? 1 : 0;
  }
};

TEST(Division, TwoOperationsNeverMoveACode) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "no FMA";
#endif
  constexpr std::int64_t kLowest = 1 << 23, kHighest = 1 << 24;
  constexpr int kBoundaryBits = 12, kFarthest = 64;  // 2^-44 of a quotient is d = 32
  Candidates candidates;
  for (std::int64_t m = kLowest; m <= kHighest; m += 1 << (24 - kBoundaryBits))
    for (const int side : {-1, 1}) {
      if (m == (side < 0 ? kLowest : kHighest)) continue;  // counted with the spacing of the binade that the middle lies in
      for (const int k : {24, 25})
        for (int d = -kFarthest; d <= kFarthest; ++d) candidates.test(static_cast<std::uint64_t>(2 * m + side), k, d);
    }
  EXPECT_EQ(candidates.wrong, 0);
  EXPECT_GT(candidates.count, 100000);
  std::printf("quotients next to a boundary: %lld\n", static_cast<long long>(candidates.count));
}

/// amax / largest as kernels/cuda/divide.cuh makes it, for every largest value that it is used with: x / c, correctly rounded.
int count_wrong_quotients(float constant) {
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
