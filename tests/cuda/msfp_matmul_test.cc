/// MSFP products: within the bound of the numerics contract for every element, on random shapes in guarded and poisoned memory; near the
/// CPU's.

#include <cmath>

#include "msfp_oracle.h"
#include "narrow/cuda_msfp.h"
#include "narrow/matmul.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

constexpr const char* kSchemes[] = {"msfp11", "msfp12", "msfp13", "msfp14", "msfp15", "msfp16"};

class MsfpMatmulTest : public ProductTest {
 protected:
  MsfpMatmulTest() : ProductTest(12) {}
  DeviceQuantized quantized(const char* scheme, std::int64_t rows, std::int64_t k, Values values) {
    const Tensor x = random_values(DType::kF32, {rows, k}, values, static_cast<unsigned>(generator_()));
    return to_device(narrow::quantize(x, Scheme::parse(scheme)), kDevice, *stream_);
  }
  Tensor dequantized(const DeviceQuantized& q) {
    const Tensor x = Tensor::empty(DType::kF32, q.shape, kDevice);
    dequantize(q, x, *stream_);
    return x;
  }
  void expect_right(const DeviceQuantized& xq, const DeviceQuantized& wq, DType out, const MsfpMatmulOptions& options, std::int64_t gap,
                    std::int64_t offset, const std::string& what) {
    const Stream stream = *stream_;
    const std::int64_t m = xq.shape[0], n = wq.shape[0], pitch = n + gap;
    const std::size_t element = static_cast<std::size_t>(bits_of(out)) / 8;
    const Guarded memory(static_cast<std::size_t>(m * pitch) * element, static_cast<std::size_t>(offset) * element, stream);
    const Tensor y = Tensor::borrow(memory.data(), out, {m, n}, {pitch, 1}, kDevice);
    unsigned long long wrong = 0;
    ASSERT_NO_THROW({
      matmul(prepare_msfp(xq, stream), prepare_msfp(wq, stream), y, stream, options);
      wrong = count_outside(dequantized(xq), dequantized(wq), options.bias ? options.bias->as<float>() : nullptr, y, stream);
    }) << what;
    ASSERT_EQ(wrong, 0u) << what;
    memory.check(stream, what);
  }
};

TEST_F(MsfpMatmulTest, RandomShapesAreWithinTheBound) {
  const std::vector<std::string> names = msfp_matmul_kernel_names();
  for (int i = 0; i < 120; ++i) {
    const std::int64_t m = 1 + pick(pick(3) == 0 ? 400 : 140), n = 1 + pick(pick(3) == 0 ? 600 : 140),
                       k = 1 + pick(pick(3) == 0 ? 2000 : 300);
    const char* x_scheme = kSchemes[pick(6)];
    const char* w_scheme = pick(2) == 0 ? x_scheme : kSchemes[pick(6)];
    const DType out = kTypes[pick(3)];
    MsfpMatmulOptions options;
    if (pick(4) == 0) options.bias = to_device(random_values(DType::kF32, {n}, Values::kNormal, 3), kDevice, *stream_);
    if (pick(3) == 0) options.kernel = names[static_cast<std::size_t>(pick(2))];
    const std::int64_t gap = pick(3) == 0 ? pick(17) : 0, offset = pick(4) == 0 ? pick(9) : 0;
    const std::string what = "case " + std::to_string(i) + ": " + x_scheme + " x " + w_scheme + " " + std::to_string(m) + "x" +
                             std::to_string(n) + "x" + std::to_string(k) + " -> " + std::string(name_of(out)) + " kernel '" +
                             std::string(options.kernel) + "'";
    ASSERT_NO_FATAL_FAILURE(expect_right(quantized(x_scheme, m, k, Values::kNormal), quantized(w_scheme, n, k, Values::kNormal), out,
                                         options, gap, offset, what));
  }
}

TEST_F(MsfpMatmulTest, ManyTilesAndBlocksAreWithinTheBound) {
  for (const char* scheme : {"msfp12", "msfp16"})
    for (const DType out : kTypes)
      for (const std::int64_t n : {2100, 2104})
        ASSERT_NO_FATAL_FAILURE(expect_right(quantized(scheme, 1300, 1500, Values::kNormal), quantized(scheme, n, 1500, Values::kNormal),
                                             out, {}, 0, 0, scheme));
}

/// More rows of both sides than the first tiles read: the others are decoded while those are multiplied.
TEST_F(MsfpMatmulTest, LaterPanelsAreWithinTheBound) {
  for (const char* scheme : {"msfp12", "msfp16"})
    ASSERT_NO_FATAL_FAILURE(expect_right(quantized(scheme, 4200, 1100, Values::kNormal), quantized(scheme, 5000, 1100, Values::kNormal),
                                         DType::kBf16, {}, 0, 0, scheme));
}

/// Exponents from -126 to 127 meet the smallest and largest of the other side: every step of the decoding is exact.
TEST_F(MsfpMatmulTest, EveryExponentIsExact) {
  for (const char* scheme : kSchemes) {
    constexpr std::int64_t kBoxes = 254;
    Tensor x = Tensor::empty(DType::kF32, {kBoxes, 16}), w = Tensor::empty(DType::kF32, {kBoxes, 16});
    for (std::int64_t i = 0; i < kBoxes * 16; ++i) {
      const int exponent = static_cast<int>(i / 16) - 126;
      const float magnitude = 1.0f + static_cast<float>(i % 16) / 17.0f, sign = i % 3 == 0 ? -1.0f : 1.0f;
      x.as<float>()[i] = sign * std::ldexp(magnitude, exponent);
      w.as<float>()[i] = i % 16 == i / 16 % 16 ? std::ldexp(1.0f, -exponent) : 0.0f;
    }
    const DeviceQuantized xq = to_device(narrow::quantize(x, Scheme::parse(scheme)), kDevice, *stream_);
    const DeviceQuantized wq = to_device(narrow::quantize(w, Scheme::parse(scheme)), kDevice, *stream_);
    const Tensor y = Tensor::empty(DType::kF32, {kBoxes, kBoxes}, kDevice);
    matmul(prepare_msfp(xq, *stream_), prepare_msfp(wq, *stream_), y, *stream_);
    // The diagonal has one product each, between 2^-2 and 2^2.
    const Tensor got = to_host(y, *stream_), xs = to_host(dequantized(xq), *stream_), ws = to_host(dequantized(wq), *stream_);
    for (std::int64_t i = 0; i < kBoxes; ++i) {
      const std::int64_t at = i * 16 + i % 16;
      EXPECT_EQ(got.as<float>()[i * kBoxes + i], xs.as<float>()[at] * ws.as<float>()[at]) << scheme << " exponent " << i - 126;
    }
  }
}

TEST_F(MsfpMatmulTest, IsNearTheCpu) {
  for (const char* scheme : kSchemes) {
    const std::int64_t m = 65, n = 130, k = 777;
    const QuantizedTensor xq = narrow::quantize(random_values(DType::kF32, {m, k}, Values::kNormal, 1), Scheme::parse(scheme)),
                          wq = narrow::quantize(random_values(DType::kF32, {n, k}, Values::kNormal, 2), Scheme::parse(scheme));
    const Tensor y = Tensor::empty(DType::kF32, {m, n}, kDevice);
    matmul(prepare_msfp(to_device(xq, kDevice, *stream_), *stream_), prepare_msfp(to_device(wq, kDevice, *stream_), *stream_), y, *stream_);
    const Tensor expected = narrow::matmul(xq, prepare(wq)), got = to_host(y, *stream_), xs = narrow::dequantize(xq),
                 ws = narrow::dequantize(wq);
    for (std::int64_t i = 0; i < m * n; ++i) {
      double absolute = 0.0;
      for (std::int64_t j = 0; j < k; ++j)
        absolute += std::fabs(static_cast<double>(xs.as<float>()[i / n * k + j]) * ws.as<float>()[i % n * k + j]);
      ASSERT_NEAR(expected.as<float>()[i], got.as<float>()[i], 2.0 * static_cast<double>(k) * 0x1p-24 * absolute)
          << scheme << " element " << i;
    }
  }
}

TEST_F(MsfpMatmulTest, PreparingHasAnExactInverse) {
  for (const char* scheme : kSchemes)
    for (const std::int64_t k : {1, 17, 128, 300}) {
      const QuantizedTensor q = narrow::quantize(random_values(DType::kF32, {131, k}, Values::kWide, 5), Scheme::parse(scheme));
      expect_equal(q, unprepare_msfp(prepare_msfp(to_device(q, kDevice, *stream_), *stream_), *stream_), *stream_, scheme);
    }
}

TEST_F(MsfpMatmulTest, RefusesWhatItCannotDoInOneSentence) {
  const MsfpMatrix x = prepare_msfp(quantized("msfp16", 8, 64, Values::kNormal), *stream_),
                   w = prepare_msfp(quantized("msfp16", 24, 64, Values::kNormal), *stream_);
  EXPECT_THROW(matmul(x, prepare_msfp(quantized("msfp16", 24, 80, Values::kNormal), *stream_),
                      Tensor::empty(DType::kBf16, {8, 24}, kDevice), *stream_),
               InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI32, {8, 24}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(prepare_msfp(allocate_quantized(Scheme::parse("mxint8"), {8, 64}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {8, 24}, kDevice), *stream_, {.kernel = "sm90_matmul_msfp_msfp_7x7"}),
               InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
