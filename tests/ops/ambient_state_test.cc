/// Results must not depend on the caller's rounding mode or flush-to-zero setting.

#include <cfenv>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "narrow/quantize.h"

namespace narrow {
namespace {

#if defined(__x86_64__)
/// Rounds toward zero and flushes subnormals, as a library built with -ffast-math leaves the process.
class HostileEnvironment {
 public:
  HostileEnvironment() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040u | 0x6000u); }
  ~HostileEnvironment() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
};
#else
class HostileEnvironment {
 public:
  HostileEnvironment() { std::fesetround(FE_TOWARDZERO); }
  ~HostileEnvironment() { std::fesetround(FE_TONEAREST); }
};
#endif

TEST(AmbientState, DoesNotMatter) {
  Tensor x = Tensor::empty(DType::kF32, {33, 257});
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  // Some rows are so small that their quotients and scales are subnormal.
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = normal(generator) * (i / 257 % 3 == 0 ? 1e-39f : 1.0f);
  for (const Scheme& scheme : standard_schemes()) {
    const QuantizedTensor expected = quantize(x, scheme);
    const Tensor values = dequantize(expected);
    QuantizedTensor q;
    Tensor y;
    {
      const HostileEnvironment hostile;
      q = quantize(x, scheme);
      y = dequantize(q);
    }
    EXPECT_EQ(std::memcmp(q.codes.data(), expected.codes.data(), q.codes.size()), 0) << scheme.to_string();
    EXPECT_EQ(std::memcmp(q.scales.data(), expected.scales.data(), q.scales.size()), 0) << scheme.to_string();
    EXPECT_EQ(std::memcmp(y.data(), values.data(), y.byte_size()), 0) << scheme.to_string();
  }
}

}  // namespace
}  // namespace narrow
