// Every row of the attention table against the definition.
#include "kernels/attention.h"
#include "kernels/logits.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace narrow {
namespace {

struct Case {
  std::int64_t tokens, heads, head_dim, before, window;
};

constexpr Case kCases[] = {{1, 1, 16, 0, 0},    {1, 3, 64, 200, 0},  {2, 3, 64, 63, 0},  {5, 4, 32, 0, 0},    {70, 3, 64, 0, 0},
                           {33, 1, 128, 17, 0}, {9, 2, 80, 130, 0},  {64, 7, 48, 64, 0}, {1, 8, 64, 300, 40}, {50, 2, 64, 100, 30},
                           {20, 3, 96, 0, 1},   {130, 2, 16, 3, 64}, {7, 2, 20, 9, 0},   {3, 6, 256, 65, 0}};

TEST(Attention, EveryRowEqualsTheReference) {
  std::vector<std::vector<float>> in_fp64(std::size(kCases));  // of the first row that takes a case
  for (const AttentionKernel& kernel : attention_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    SCOPED_TRACE(kernel.name);
    std::mt19937 generator(7);  // the same values for every row
    std::normal_distribution<float> normal(0.0f, 1.5f);
    std::size_t accepted = 0;
    for (const Case& c : kCases) {
      SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.heads << " heads of " << c.head_dim << " after " << c.before
                                      << ", window " << c.window);
      const std::int64_t keys = c.before + c.tokens, q_width = c.heads * c.head_dim + 5, kv_width = c.head_dim + 3;
      std::vector<float> q(static_cast<std::size_t>(c.tokens * q_width)), k(static_cast<std::size_t>(keys * kv_width)), v(k.size());
      for (std::vector<float>* values : {&q, &k, &v})
        for (float& value : *values) value = normal(generator);
      constexpr float kGuard = -12345.0f;
      std::vector<float> out(q.size(), kGuard), expected(q.size(), kGuard);
      AttentionProblem problem{.tokens = c.tokens,
                               .heads = c.heads,
                               .head_dim = c.head_dim,
                               .first_position = c.before,
                               .window = c.window,
                               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                               .q = q.data(),
                               .q_stride = q_width,
                               .k = k.data(),
                               .v = v.data(),
                               .kv_stride = kv_width,
                               .out = expected.data(),
                               .out_stride = q_width};
      std::vector<std::byte> scratch(reference::kAttention.scratch_bytes(problem, 0, c.tokens));
      reference::kAttention.run(problem, 0, c.tokens, scratch.data());
      if (!kernel.accepts(problem)) continue;
      ++accepted;
      problem.out = out.data();
      // In two parts, as threads would.
      const std::int64_t middle = c.tokens / 2;
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, middle}, {middle, c.tokens}}) {
        if (begin == end) continue;
        std::vector<std::byte> mine(kernel.scratch_bytes(problem, begin, end));
        kernel.run(problem, begin, end, mine.data());
      }
      for (std::int64_t token = 0; token < c.tokens; ++token)
        for (std::int64_t i = 0; i < q_width; ++i) {
          const std::size_t place = static_cast<std::size_t>(token * q_width + i);
          if (i >= c.heads * c.head_dim) {
            ASSERT_EQ(out[place], kGuard);
          } else {
            ASSERT_NEAR(out[place], expected[place], 2e-5f) << "token " << token << " element " << i;
          }
        }

      // Sums in fp64 give every row's bits, and the definition's but for weights in fp32.
      if (kernel.isa == Isa::kScalar) continue;
      problem.in_fp64 = true;
      std::vector<std::byte> mine(kernel.scratch_bytes(problem, 0, c.tokens));
      kernel.run(problem, 0, c.tokens, mine.data());
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-6f);
      std::vector<float>& first = in_fp64[static_cast<std::size_t>(&c - kCases)];
      if (first.empty()) first = out;
      EXPECT_EQ(out, first);
    }
    EXPECT_GE(accepted, 8u);
  }
}

TEST(Logits, EveryRowEqualsTheReference) {
  std::mt19937 generator(8);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (const LogitsKernel& kernel : logits_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    SCOPED_TRACE(kernel.name);
    for (const std::int64_t count : {1, 2, 15, 16, 63, 64, 65, 100, 1000, 4096, 32001}) {
      std::vector<float> x(static_cast<std::size_t>(count)), y(x.size());
      for (float& value : x) value = normal(generator);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] + 0.1f * normal(generator);
      if (count > 70) x[69] = x[40] = 30.0f;  // a tie: the first one counts
      if (count > 70) x[3] = -200.0f;
      const LogitSums expected = reference::kLogits.run(x.data(), y.data(), count), got = kernel.run(x.data(), y.data(), count);
      EXPECT_EQ(got.largest, expected.largest) << count;
      EXPECT_NEAR(got.log_sum, expected.log_sum, 2e-6 * std::fabs(expected.log_sum) + 1e-6) << count;
      EXPECT_NEAR(got.difference, expected.difference, 1e-5) << count;
      const LogitSums alone = kernel.run(x.data(), nullptr, count);
      EXPECT_EQ(alone.log_sum, got.log_sum);
      EXPECT_EQ(alone.difference, 0.0);
    }
  }
}

}  // namespace
}  // namespace narrow
