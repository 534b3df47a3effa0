#include "narrow/matmul.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "narrow/error.h"
#include "random_tensor.h"

namespace narrow {
namespace {

using test::random_tensor;

bool same_bytes(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

TEST(Prepare, UnprepareIsTheExactInverse) {
  for (const Scheme& scheme : standard_schemes())
    for (const Shape& shape : {Shape{1, 1}, Shape{16, 32}, Shape{17, 33}, Shape{67, 300}, Shape{130, 129}, Shape{0, 5}, Shape{5, 0}}) {
      const QuantizedTensor q = quantize(random_tensor(shape, 1), scheme);
      const QuantizedTensor back = unprepare(prepare(q));
      EXPECT_TRUE(same_bytes(q.codes, back.codes)) << scheme.to_string() << to_string(shape);
      EXPECT_TRUE(same_bytes(q.scales, back.scales)) << scheme.to_string() << to_string(shape);
      EXPECT_TRUE(same_bytes(q.zero_points, back.zero_points)) << scheme.to_string() << to_string(shape);
      EXPECT_EQ(q.outer_scale, back.outer_scale);
    }
}

TEST(Prepare, DenseRoundTrips) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    const Tensor w = convert(random_tensor({37, 50}, 2), dtype);
    const Tensor back = unprepare_dense(prepare(w));
    EXPECT_EQ(std::memcmp(w.data(), back.data(), w.byte_size()), 0);
  }
  EXPECT_THROW(unprepare(prepare(random_tensor({2, 3}, 3))), InvalidArgument);
}

TEST(Prepare, ValuesThatAreNotFiniteStayCanonical) {
  Tensor w = random_tensor({8, 64}, 4);
  w.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  const PreparedWeight p = prepare(quantize(w, Scheme::parse("fp8_e4m3:row")));
  EXPECT_EQ(p.layout, WeightLayout::kCanonical);
  const Tensor y = matmul(random_tensor({2, 64}, 5), p);
  EXPECT_TRUE(std::isnan(y.as<float>()[0]));
  EXPECT_FALSE(std::isnan(y.as<float>()[1]));
}

TEST(Matmul, KnownProduct) {
  const Tensor x = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor w = Tensor::of({1, 0, -1, 2, 1, 0}, {2, 3});
  const Tensor y = matmul(x, prepare(w), {.bias = Tensor::of({10, -100}, {2}), .activation = Activation::kRelu});
  EXPECT_EQ(y.shape(), (Shape{2, 2}));
  EXPECT_EQ(y.as<float>()[0], 8.0f);
  EXPECT_EQ(y.as<float>()[1], 0.0f);
  EXPECT_EQ(y.as<float>()[2], 8.0f);
}

/// Every third scale with the other sign, as other tools' files have them; scales without a sign stay.
void turn_signs(QuantizedTensor& q) {
  if (q.scheme.scale == kE8m0 || !q.scheme.has_scales()) return;
  const std::size_t bytes = static_cast<std::size_t>(q.scheme.scale.bits / 8);
  for (std::size_t i = bytes - 1; i < q.scales.size(); i += 3 * bytes) q.scales.as<std::uint8_t>()[i] ^= 0x80u;
}

TEST(Matmul, EverySchemeIsCloseToItsDequantizedProduct) {
  const Tensor x = random_tensor({3, 300}, 6);
  std::vector<Scheme> schemes = standard_schemes();
  schemes.push_back(Scheme::parse("int4:block32:scale=fp16"));
  for (const Scheme& scheme : schemes) {
    QuantizedTensor q = quantize(random_tensor({70, 300}, 7), scheme);
    if (!scheme.is_msfp) turn_signs(q);
    const Tensor dense = dequantize(q);
    const Tensor y = matmul(x, prepare(q)), z = matmul(x, prepare(dense));
    for (std::int64_t i = 0; i < y.size(); ++i) {
      double magnitude = 0.0;
      for (std::int64_t k = 0; k < 300; ++k)
        magnitude += std::fabs(static_cast<double>(x.as<float>()[i / 70 * 300 + k]) * dense.as<float>()[i % 70 * 300 + k]);
      EXPECT_NEAR(y.as<float>()[i], z.as<float>()[i], magnitude * 600 * 0x1p-24) << scheme.to_string() << " " << i;
    }
  }
}

TEST(Matmul, ResultTypes) {
  const Tensor x = random_tensor({5, 64}, 8);
  const PreparedWeight w = prepare(quantize(random_tensor({33, 64}, 9), Scheme::parse("int8:row")));
  const Tensor y = matmul(x, w, {.quantize = ActivationQuantization{}});
  const Tensor half = matmul(x, w, {.out = DType::kF16, .quantize = ActivationQuantization{}});
  const Tensor bytes = matmul(x, w, {.out = DType::kI8, .out_scale = 0.25f, .quantize = ActivationQuantization{}});
  const Tensor sums = matmul(x, w, {.out = DType::kI32, .quantize = ActivationQuantization{}});
  const Tensor rounded = convert(y, DType::kF16);
  EXPECT_EQ(std::memcmp(half.data(), rounded.data(), half.byte_size()), 0);
  const QuantizedTensor q = quantize(x, Scheme::parse("int8:row"));
  const QuantizedTensor canonical = unprepare(w);
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const float wanted = std::fmin(127.0f, std::fmax(-127.0f, std::nearbyint(y.as<float>()[i] / 0.25f)));
    EXPECT_EQ(bytes.as<std::int8_t>()[i], static_cast<int>(wanted));
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < 64; ++k)
      sum += q.codes.as<std::int8_t>()[i / 33 * 64 + k] * canonical.codes.as<std::int8_t>()[i % 33 * 64 + k];
    EXPECT_EQ(sums.as<std::int32_t>()[i], sum);
    EXPECT_EQ(y.as<float>()[i], static_cast<float>(sum) * (q.scales.as<float>()[i / 33] * canonical.scales.as<float>()[i % 33]));
  }
}

TEST(Matmul, ShapesAndErrors) {
  const PreparedWeight w = prepare(random_tensor({4, 6}, 10));
  EXPECT_EQ(matmul(random_tensor({2, 3, 6}, 11), w).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(matmul(random_tensor({6}, 11), w).shape(), (Shape{4}));
  EXPECT_EQ(matmul(random_tensor({0, 6}, 11), w).size(), 0);
  EXPECT_THROW(matmul(random_tensor({2, 5}, 11), w), InvalidArgument);
  EXPECT_THROW(matmul(random_tensor({2, 6}, 11), w, {.bias = random_tensor({5}, 1)}), InvalidArgument);
  EXPECT_THROW(matmul(random_tensor({2, 6}, 11), w, {.residual = random_tensor({2, 5}, 1)}), InvalidArgument);
  EXPECT_THROW(matmul(random_tensor({2, 6}, 11), w, {.out = DType::kI32}), InvalidArgument);
  EXPECT_THROW(matmul(random_tensor({2, 6}, 11), w, {.out = DType::kI8, .out_scale = 0.0f}), InvalidArgument);
  EXPECT_THROW(matmul(Tensor::empty(DType::kI8, {2, 6}), w), InvalidArgument);
  EXPECT_THROW(prepare(random_tensor({6}, 12)), InvalidArgument);
  const Tensor zero =
      matmul(Tensor::empty(DType::kF32, {2, 0}), prepare(Tensor::empty(DType::kF32, {3, 0})), {.bias = Tensor::of({1, 2, 3}, {3})});
  EXPECT_EQ(zero.as<float>()[4], 2.0f);
}

TEST(Matmul, IntoMemoryOfTheCaller) {
  const Tensor x = random_tensor({5, 96}, 21);
  const PreparedWeight w = prepare(quantize(random_tensor({70, 96}, 22), Scheme::parse("int8:row")));
  const QuantizedTensor q = quantize(x, Scheme::parse("int8:row"));
  Tensor y = Tensor::empty(DType::kF32, {5, 70});
  matmul_into(x, w, y);
  EXPECT_EQ(std::memcmp(y.data(), matmul(x, w).data(), y.byte_size()), 0);
  matmul_into(q, w, y);
  EXPECT_EQ(std::memcmp(y.data(), matmul(q, w).data(), y.byte_size()), 0);
  Tensor other = Tensor::empty(DType::kF32, {5, 71}), half = Tensor::empty(DType::kF16, {5, 70});
  EXPECT_THROW(matmul_into(x, w, other), InvalidArgument);
  EXPECT_THROW(matmul_into(x, w, half), InvalidArgument);
}

/// A row of one value that is not finite takes another way than finite rows do; what it meets is not finite either, all else is.
TEST(Matmul, OneRowWithInfinity) {
  for (const char* scheme : {"int4:block128", "fp3_e2m0:row", "int2:block64", "nvfp4", "fp8_e4m3:row"}) {
    Tensor x = random_tensor({1, 256}, 23), dense = random_tensor({70, 256}, 24);
    x.as<float>()[9] = std::numeric_limits<float>::infinity();
    const QuantizedTensor q = quantize(dense, Scheme::parse(scheme));
    const Tensor y = matmul(x, prepare(q)), values = dequantize(q);
    for (std::int64_t n = 0; n < 70; ++n) {
      const float met = values.as<float>()[n * 256 + 9], got = y.as<float>()[n];
      EXPECT_TRUE(met == 0.0f ? std::isnan(got) : std::isinf(got) && std::signbit(got) == std::signbit(met))
          << scheme << " " << n << " " << got;
    }
  }
}

TEST(Matmul, ExplainNamesOneRow) {
  const auto rows = explain_matmul(1, 64, 64, Scheme::parse("int4:block32"));
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](const MatmulChoice& row) { return row.chosen; }), 1);
  EXPECT_EQ(rows.back().name, "ref_matmul");
}

}  // namespace
}  // namespace narrow
