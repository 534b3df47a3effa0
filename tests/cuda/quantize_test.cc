/// Every scheme, type, row of the tables, odd shape, offset and stride against the CPU, bit for bit.

#include <bit>
#include <cmath>
#include <cstring>

#include "harness.h"

namespace narrow::cuda::testing {
namespace {

using HostOptions = narrow::QuantizeOptions;

std::string describe(const Scheme& scheme, DType dtype, const Shape& shape, const std::string& more) {
  return scheme.to_string() + " " + std::string(name_of(dtype)) + " " + to_string(shape) + " " + more;
}

/// Quantizes with every row that takes the problem, and compares.
void check_quantize(const Tensor& host, const Scheme& scheme, std::int64_t offset, std::int64_t gap, std::size_t code_offset, Stream stream,
                    const HostOptions& host_options, const QuantizeOptions& options) {
  const QuantizedTensor expected = quantize(host, scheme, host_options);
  const GuardedValues values(host, offset, gap, stream);
  for (const std::string& kernel : quantize_kernel_names()) {
    const std::string what =
        describe(scheme, host.dtype(), host.shape(), kernel + " offset " + std::to_string(offset) + " gap " + std::to_string(gap));
    const GuardedQuantized out(scheme, host.shape(), code_offset, stream);
    QuantizeOptions with_kernel = options;
    with_kernel.kernel = kernel;
    try {
      quantize(values.x, out.q, stream, with_kernel);
    } catch (const Unsupported&) {
      continue;
    }
    expect_equal(expected, out.q, stream, what);
    out.check(stream, what);
    if (::testing::Test::HasFailure()) return;
  }
}

/// Dequantizes with every row that takes the problem, into every type, and compares.
void check_dequantize(const QuantizedTensor& host, std::size_t code_offset, Stream stream) {
  const GuardedQuantized in(host.scheme, host.shape, code_offset, stream);
  const DeviceQuantized plain = to_device(host, kDevice, stream);
  copy(Tensor::over(plain.codes, DType::kU8, {static_cast<std::int64_t>(plain.codes.size())}),
       Tensor::over(in.q.codes, DType::kU8, {static_cast<std::int64_t>(plain.codes.size())}), stream);
  DeviceQuantized q = plain;
  q.codes = in.q.codes;
  for (const DType dtype : kTypes) {
    const Tensor expected = dequantize(host, dtype);
    for (const std::string& kernel : dequantize_kernel_names()) {
      const std::string what = describe(host.scheme, dtype, host.shape, kernel);
      const Guarded memory(expected.byte_size(), 0, stream);
      const Tensor y = Tensor::borrow(memory.data(), dtype, host.shape, {}, kDevice);
      try {
        dequantize(q, y, stream, kernel);
      } catch (const Unsupported&) {
        continue;
      }
      expect_equal(expected, to_host(y, stream), what);
      memory.check(stream, what);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

struct Layout {
  std::int64_t offset, gap;
  std::size_t code_offset;
};

TEST(CudaQuantize, EverySchemeMatchesTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 1;
  for (const Scheme& scheme : standard_schemes())
    for (const DType dtype : kTypes)
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{5, 128}, Shape{14, 1000}, Shape{9, 4096}, Shape{2, 3, 65},
                                 Shape{2, 70, 384}, Shape{130, 256}, Shape{37}}) {
        const Tensor host = random_values(dtype, shape, static_cast<Values>(seed % 4), seed);
        ++seed;
        check_quantize(host, scheme, 0, 0, 0, stream, {.nonfinite = NonFinite::kSaturate}, {});
        ASSERT_FALSE(HasFailure());
      }
}

TEST(CudaQuantize, OffsetsAndStrides) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 1000;
  for (const Scheme& scheme : standard_schemes())
    for (const DType dtype : kTypes)
      for (const Layout& layout :
           {Layout{1, 0, 1}, Layout{0, 8, 0}, Layout{0, 3, 0}, Layout{4, 0, 4}, Layout{8, 16, 16}, Layout{3, 5, 3}}) {
        const Tensor host = random_values(dtype, {19, 384}, static_cast<Values>(seed % 4), seed);
        ++seed;
        check_quantize(host, scheme, layout.offset, layout.gap, layout.code_offset, stream, {.nonfinite = NonFinite::kSaturate}, {});
        ASSERT_FALSE(HasFailure());
      }
}

TEST(CudaQuantize, EveryRoundingAndOverflow) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 2000;
  for (const Scheme& scheme : standard_schemes())
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic})
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kIeee}) {
        const Tensor host = random_values(kTypes[seed % 3], {7, 256}, static_cast<Values>(seed % 4), seed);
        ++seed;
        check_quantize(host, scheme, 0, 0, 0, stream,
                       {.rounding = rounding, .overflow = overflow, .nonfinite = NonFinite::kSaturate, .seed = seed},
                       {.rounding = rounding, .overflow = overflow, .seed = seed});
        ASSERT_FALSE(HasFailure());
      }
}

TEST(CudaQuantize, StaticScales) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 3000;
  for (const Scheme& scheme : standard_schemes()) {
    if (!scheme.has_scales() || scheme.has_outer_scale) continue;
    for (const DType dtype : kTypes) {
      const Shape shape{24, 384};
      const Tensor host = random_values(dtype, shape, static_cast<Values>(seed % 4), seed);
      const std::int64_t cells = scale_grid(scheme, shape).count();
      Tensor scales = Tensor::empty(DType::kF32, {cells}), zeros = Tensor::empty(DType::kU8, {cells});
      for (std::int64_t i = 0; i < cells; ++i) {
        scales.as<float>()[i] = 0.001f * static_cast<float>((i * 37 + static_cast<std::int64_t>(seed)) % 97 + 1);
        zeros.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % (scheme.element.max_code() + 1));
      }
      ++seed;
      HostOptions host_options{.nonfinite = NonFinite::kSaturate, .scales = scales};
      QuantizeOptions options{.scales = to_device(scales, kDevice, stream)};
      if (scheme.asymmetric) {
        host_options.zero_points = zeros;
        options.zero_points = to_device(zeros, kDevice, stream);
      }
      check_quantize(host, scheme, 0, 0, 0, stream, host_options, options);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(CudaQuantize, GivenOuterScaleAndFlags) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Tensor host = random_values(DType::kBf16, {32, 256}, Values::kNormal, 7);
  const QuantizedTensor expected = quantize(host, Scheme::parse("nvfp4"));
  const Tensor outer = to_device(Tensor::of({expected.outer_scale}, {1}), kDevice, stream);
  const GuardedQuantized out(expected.scheme, expected.shape, 0, stream);
  quantize(to_device(host, kDevice, stream), out.q, stream, {.outer_scale = outer});
  expect_equal(expected, out.q, stream, "nvfp4 with a given outer scale");

  const Tensor zero = Tensor::empty(DType::kU32, {1});
  zero.as<std::uint32_t>()[0] = 0;
  for (const char* text : {"int8:row", "fp8_e4m3:block128", "int8:tensor", "fp4_e3m0:row", "nvfp4", "fp8_e4m3:none"}) {
    const Scheme scheme = Scheme::parse(text);
    const Tensor flags = to_device(zero, kDevice, stream);
    const GuardedQuantized q(scheme, host.shape(), 0, stream);
    quantize(to_device(host, kDevice, stream), q.q, stream, {.flags = flags});
    EXPECT_EQ(to_host(flags, stream).as<std::uint32_t>()[0], 0u) << text;
    quantize(to_device(random_values(DType::kBf16, {32, 256}, Values::kNonFinite, 7), kDevice, stream), q.q, stream, {.flags = flags});
    EXPECT_EQ(to_host(flags, stream).as<std::uint32_t>()[0], 3u) << text;
  }
}

TEST(CudaDequantize, EverySchemeMatchesTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 4000;
  for (const Scheme& scheme : standard_schemes())
    for (const Shape& shape :
         {Shape{1, 1}, Shape{3, 17}, Shape{5, 128}, Shape{14, 1000}, Shape{9, 4096}, Shape{2, 3, 65}, Shape{2, 70, 384}})
      for (const std::size_t code_offset : {0u, 3u, 8u}) {
        const Tensor host = random_values(kTypes[seed % 3], shape, static_cast<Values>(seed % 4), seed);
        ++seed;
        check_dequantize(quantize(host, scheme, {.nonfinite = NonFinite::kSaturate}), code_offset, stream);
        ASSERT_FALSE(HasFailure());
      }
}

/// Codes and scales that quantize never makes: all bytes, NaN and huge scales.
TEST(CudaDequantize, AllCodesAndExtremeScales) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const Scheme& scheme : standard_schemes()) {
    const Shape shape{16, 512};
    QuantizedTensor q = quantize(random_values(DType::kF32, shape, Values::kWide, 11), scheme);
    for (std::size_t i = 0; i < q.codes.size(); ++i) q.codes.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
    if (scheme.scale == kFp32)
      for (std::size_t i = 0; i < q.scales.size() / 4; ++i)
        q.scales.as<float>()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 0x01234567u) & 0x7F7FFFFFu);
    if (scheme.scale.bits == 8)
      for (std::size_t i = 0; i < q.scales.size(); ++i) q.scales.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 3);
    check_dequantize(q, 0, stream);
    ASSERT_FALSE(HasFailure());
  }
}

/// Every scheme and type both ways on one small tensor: short enough for the sanitizers.
TEST(CudaSmall, EverySchemeBothWays) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 5000;
  for (const Scheme& scheme : standard_schemes())
    for (const DType dtype : kTypes)
      for (const Shape& shape : {Shape{3, 19}, Shape{2, 384}}) {
        const Tensor host = random_values(dtype, shape, seed % 2 == 0 ? Values::kNormal : Values::kNonFinite, seed);
        ++seed;
        check_quantize(host, scheme, 0, 0, 0, stream, {.nonfinite = NonFinite::kSaturate}, {});
        check_dequantize(quantize(host, scheme, {.nonfinite = NonFinite::kSaturate}), 0, stream);
        ASSERT_FALSE(HasFailure());
      }
}

/// One scale over more than the GPU keeps on the chip between its two passes, with and without values that are not finite.
TEST(CudaQuantize, DynamicTensorBeyondTheChip) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 6000;
  for (const char* text : {"fp8_e4m3:tensor", "int8:tensor"})
    for (const DType dtype : kTypes)
      for (const std::int64_t rows : {1000, 9001, 20003})
        for (const Values values : {Values::kNormal, Values::kNonFinite}) {
          const Tensor some = random_values(dtype, {101, 1208}, values, seed++);
          const Tensor host = Tensor::empty(dtype, {rows, 1208});
          for (std::size_t at = 0; at < host.byte_size(); at += some.byte_size())
            std::memcpy(host.data() + at, some.data(), std::min(some.byte_size(), host.byte_size() - at));
          const Scheme scheme = Scheme::parse(text);
          const GuardedQuantized out(scheme, host.shape(), 0, stream);
          quantize(to_device(host, kDevice, stream), out.q, stream);
          const std::string what = describe(scheme, dtype, host.shape(),
                                            explain_quantize(Tensor::borrow(out.q.codes.data(), dtype, host.shape(), {}, kDevice), scheme));
          expect_equal(quantize(host, scheme, {.nonfinite = NonFinite::kSaturate}), out.q, stream, what);
          out.check(stream, what);
          ASSERT_FALSE(HasFailure());
        }
}

TEST(CudaQuantize, RequantizeAndFakeQuantize) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const char* to : {"int4:block128", "fp8_e4m3:row", "nvfp4", "int8:col", "msfp12", "int4:block32:asym"}) {
    const Scheme scheme = Scheme::parse(to);
    const Tensor host = random_values(DType::kBf16, {24, 256}, Values::kNormal, 5);
    const QuantizedTensor from = quantize(host, Scheme::parse("int8:row"));
    const GuardedQuantized out(scheme, host.shape(), 0, stream);
    requantize(to_device(from, kDevice, stream), out.q, stream);
    expect_equal(requantize(from, scheme), out.q, stream, to);
    out.check(stream, to);

    const Tensor y = Tensor::empty(DType::kBf16, host.shape(), kDevice);
    fake_quantize(to_device(host, kDevice, stream), y, scheme, stream);
    expect_equal(fake_quantize(host, scheme), to_host(y, stream), to);
  }
}

TEST(CudaConvert, EveryPairMatchesTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const DType from : kTypes)
    for (const DType to : kTypes)
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kIeee})
        for (const Values values : {Values::kWide, Values::kNonFinite}) {
          const Tensor host = random_values(from, {3333}, values, 3);
          const Tensor y = Tensor::empty(to, host.shape(), kDevice);
          convert(to_device(host, kDevice, stream), y, stream, overflow);
          expect_equal(convert(host, to, overflow), to_host(y, stream), std::string(name_of(from)) + " to " + std::string(name_of(to)));
        }
}

TEST(CudaObserve, RangeAndHistogram) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const DType dtype : kTypes) {
    const Tensor host = convert(random_values(dtype, {12345}, Values::kNonFinite, 9), DType::kF32);
    const Tensor x = to_device(random_values(dtype, {12345}, Values::kNonFinite, 9), kDevice, stream);
    Tensor words = Tensor::empty(DType::kU32, {4});
    std::memset(words.data(), 0, 16);
    const Tensor range = to_device(words, kDevice, stream);
    observe_range(x, range, stream);
    const Range actual = read_range(range, stream);
    const int bins = 512;
    const float limit = 3.0f;
    std::vector<std::uint64_t> expected(bins, 0);
    float low = 0.0f, high = 0.0f;
    for (std::int64_t i = 0; i < host.size(); ++i) {
      const float value = host.as<float>()[i];
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
      const float place = std::fabs(value) / limit * static_cast<float>(bins);
      ++expected[static_cast<std::size_t>(place < static_cast<float>(bins) ? static_cast<int>(place) : bins - 1)];
    }
    EXPECT_EQ(actual.minimum, low);
    EXPECT_EQ(actual.maximum, high);
    EXPECT_EQ(actual.amax, std::max(-low, high));
    EXPECT_EQ(actual.flags, 3u);
    Tensor zeros = Tensor::empty(DType::kU64, {bins});
    std::memset(zeros.data(), 0, zeros.byte_size());
    const Tensor counts = to_device(zeros, kDevice, stream);
    observe_histogram(x, counts, limit, stream);
    const Tensor result = to_host(counts, stream);
    for (int i = 0; i < bins; ++i) ASSERT_EQ(result.as<std::uint64_t>()[i], expected[static_cast<std::size_t>(i)]) << "bin " << i;
  }
}

}  // namespace
}  // namespace narrow::cuda::testing
