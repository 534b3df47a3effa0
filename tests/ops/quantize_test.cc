#include "narrow/quantize.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "narrow/error.h"
#include "random_tensor.h"

namespace narrow {
namespace {

using test::random_tensor;

TEST(Quantize, Int8RowMatchesTheEquations) {
  const Tensor x = Tensor::of({1.0f, -2.0f, 0.5f, 0.0f, 0.0f, 0.0f}, {2, 3});
  const QuantizedTensor q = quantize(x, Scheme::parse("int8:row"));
  EXPECT_EQ(q.scales.as<float>()[0], 2.0f / 127.0f);
  EXPECT_EQ(q.scales.as<float>()[1], 1.0f);  // an all-zero row
  const auto* codes = q.codes.as<std::int8_t>();
  EXPECT_EQ(codes[0], 64);  // 63.5 ties to even
  EXPECT_EQ(codes[1], -127);
  EXPECT_EQ(codes[2], 32);
  EXPECT_EQ(codes[3], 0);
}

TEST(Quantize, EverySchemeOnEveryRank) {
  for (const Scheme& scheme : standard_schemes())
    for (const Shape& shape : {Shape{37}, Shape{3, 131}, Shape{2, 3, 65}, Shape{2, 1, 3, 17}, Shape{0, 8}, Shape{4, 0}, Shape{}}) {
      const Tensor x = random_tensor(shape, 1);
      const QuantizedTensor q = quantize(x, scheme);
      const Tensor y = dequantize(q);
      ASSERT_EQ(y.shape(), shape);
      if (x.size() < 10) continue;
      const double least = scheme.element.bits <= 2 ? 0.0 : (scheme.element.bits == 3 ? 5.0 : 10.0);
      EXPECT_GT(compare(x, y).sqnr_db, least) << scheme.to_string() << " " << to_string(shape);
    }
}

TEST(Quantize, StridedEqualsContiguous) {
  const Tensor x = random_tensor({64, 48}, 2);
  const Tensor transposed = Tensor::borrow(x.data(), DType::kF32, {48, 64}, {1, 48});
  const Tensor part = Tensor::borrow(x.data() + 4, DType::kF32, {60, 33}, {48, 1});
  for (const Tensor& view : {transposed, part})
    for (const Scheme& scheme : standard_schemes()) {
      const QuantizedTensor a = quantize(view, scheme), b = quantize(view.contiguous(), scheme);
      EXPECT_TRUE(std::equal(a.codes.bytes().begin(), a.codes.bytes().end(), b.codes.bytes().begin())) << scheme.to_string();
      EXPECT_TRUE(std::equal(a.scales.bytes().begin(), a.scales.bytes().end(), b.scales.bytes().begin())) << scheme.to_string();
    }
}

TEST(Quantize, RefusesWhatTheFormatCannotHold) {
  Tensor x = random_tensor({4, 64}, 3);
  x.as<float>()[70] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(quantize(x, Scheme::parse("int8:row")), InvalidArgument);
  EXPECT_THROW(quantize(x, Scheme::parse("int8:tensor")), InvalidArgument);
  EXPECT_THROW(quantize(x, Scheme::parse("nvfp4")), InvalidArgument);
  EXPECT_TRUE(std::isnan(dequantize(quantize(x, Scheme::parse("fp8_e4m3:row"))).as<float>()[70]));
  const Tensor y = dequantize(quantize(x, Scheme::parse("int8:row"), {.nonfinite = NonFinite::kSaturate}));
  EXPECT_EQ(y.as<float>()[70], 0.0f);
}

}  // namespace
}  // namespace narrow
