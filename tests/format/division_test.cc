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
/// (kernels/cpu/quantize/run_codes.inl). Before its last rounding it is off by less than 2^-44 of the quotient, so that it can differ from
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

/// E2M1 by products with RN(1 / s) instead of quotients, for values of `bits` significant bits and the scales that kernels/cuda/encode.cuh
/// admits (is_product_divisor): both lie strictly on the same side of every boundary of codes, T 2^e with T = 1, 3, 5, 7. In doubt are the
/// two x around s T 2^e alone.
bool is_product_divisor(float s, int bits) {
  return ((std::bit_cast<std::uint32_t>(s) * 105u + 256u) & ((1u << (24 - bits)) - 1u)) >= 512u;
}

int count_moved_codes(float s, int bits) {
  const float reciprocal = 1.0f / s, spacing = std::ldexp(1.0f, 1 - bits);
  int moved = 0;
  for (const float boundary : {0.5f, 1.0f, 0.75f, 1.5f, 0.625f, 1.25f, 0.875f, 1.75f}) {
    const float below = std::floor(s * boundary / spacing) * spacing;
    for (const float x : {below, below + spacing}) {
      const float quotient = x / s;
      const double product = static_cast<double>(x) * static_cast<double>(reciprocal);  // exact
      moved += quotient == boundary || (quotient > boundary) != (product > boundary) ? 1 : 0;
    }
  }
  return moved;
}

TEST(Division, ProductsNeverMoveACode) {
  for (const int bits : {8, 11}) {  // bf16, fp16
    std::int64_t admitted = 0, moved = 0;
#pragma omp parallel for schedule(static) reduction(+ : admitted, moved)
    for (int i = 0; i < 1 << 23; ++i) {
      const float s = 1.0f + static_cast<float>(i) * 0x1p-23f;
      if (!is_product_divisor(s, bits)) continue;
      ++admitted;
      moved += count_moved_codes(s, bits);
    }
    EXPECT_EQ(moved, 0) << bits;
    EXPECT_GT(admitted, 7'800'000) << bits;
    std::printf("scales whose products have the codes of quotients: %.1f%% for values of %d bits\n",
                static_cast<double>(admitted) * 0x1p-23 * 100, bits);
  }
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
