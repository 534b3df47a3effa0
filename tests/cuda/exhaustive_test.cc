/// Conversions over all inputs: 2^32 of fp32, 2^16 of the 16-bit types. CPU and GPU must agree on every code.
/// Casts are compared with the intervals of intervals.h; the CPU is asked at their ends, between which it cannot change its mind.

#include <bit>

#include "device/cuda/runtime.h"
#include "harness.h"
#include "intervals.h"

namespace narrow::cuda::testing {
namespace {

/// All 2^32 fp32 in slices, with one static scale.
void check_all_floats(const char* text, float scale, Stream stream) {
  constexpr std::int64_t kSlice = std::int64_t{1} << 27;
  const Scheme scheme = Scheme::parse(text);
  narrow::QuantizeOptions host_options{.nonfinite = NonFinite::kSaturate};
  QuantizeOptions options;
  if (scheme.has_scales()) {
    host_options.scales = Tensor::of({scale}, {1});
    options.scales = to_device(*host_options.scales, kDevice, stream);
  }
  const Tensor host = Tensor::empty(DType::kF32, {kSlice}), x = Tensor::empty(DType::kF32, {kSlice}, kDevice);
  const DeviceQuantized q = allocate_quantized(scheme, {kSlice}, kDevice);
  for (std::int64_t begin = 0; begin < std::int64_t{1} << 32; begin += kSlice) {
    std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(host.data());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < kSlice; ++i) bits[i] = static_cast<std::uint32_t>(begin + i);
    copy(host, x, stream);
    quantize(x, q, stream, options);
    const QuantizedTensor expected = quantize(host, scheme, host_options), actual = to_host(q, stream);
    if (std::equal(expected.codes.bytes().begin(), expected.codes.bytes().end(), actual.codes.bytes().begin())) continue;
    for (std::size_t i = 0; i < expected.codes.size(); ++i)
      ASSERT_EQ(static_cast<int>(expected.codes.data()[i]), static_cast<int>(actual.codes.data()[i]))
          << text << " of bits " << begin + static_cast<std::int64_t>(i) * 8 / scheme.element.bits;
  }
}

/// The CPU's conversion at both sides of every interval's end.
void check_ends(const Format& format, const Intervals& intervals) {
  for (std::uint32_t code = 0; code < intervals.lower.size(); ++code) {
    const std::uint32_t end = intervals.lower[code];
    ASSERT_EQ(encode(format, std::bit_cast<float>(end)), code);
    ASSERT_EQ(encode(format, std::bit_cast<float>(end | 0x80000000u)), code | (1u << (format.bits - 1)));
    if (code > 0) {
      ASSERT_EQ(encode(format, std::bit_cast<float>(end - 1)), code - 1);
    }
  }
}

/// convert_slice(x) gives a pointer to the packed codes of a device tensor.
template <typename ConvertSlice>
void check_cast(const Format& format, const std::string& what, Stream stream, const ConvertSlice& convert_slice) {
  constexpr std::int64_t kSlice = std::int64_t{1} << 29;
  const Intervals intervals = intervals_of(format);
  check_ends(format, intervals);
  const Tensor x = Tensor::empty(DType::kF32, {kSlice}, kDevice);
  for (std::int64_t begin = 0; begin < std::int64_t{1} << 32; begin += kSlice) {
    fill_with_bits(x, static_cast<std::uint32_t>(begin), stream);
    std::uint32_t example = 0;
    ASSERT_EQ(count_differences(intervals, convert_slice(x), static_cast<std::uint32_t>(begin), kSlice, example, stream), 0)
        << what << ", for example of bits " << example;
  }
}

TEST(CudaExhaustive, AllFloatsToEveryNamedFormat) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const char* name : {"fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp5_e3m1", "fp5_e2m2", "fp4_e2m1", "fp4_e3m0", "fp3_e2m0"}) {
    const Scheme scheme = Scheme::parse(std::string(name) + ":none");
    DeviceQuantized q;
    check_cast(scheme.element, name, stream, [&](const Tensor& x) {
      if (q.codes.size() == 0) q = allocate_quantized(scheme, x.shape(), kDevice);
      quantize(x, q, stream);
      return q.codes.data();
    });
    ASSERT_FALSE(HasFailure());
  }
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    Tensor y;
    check_cast(dtype == DType::kF16 ? kFp16 : kBf16, std::string(name_of(dtype)), stream, [&](const Tensor& x) {
      if (y.size() != x.size()) y = Tensor::empty(dtype, x.shape(), kDevice);
      convert(x, y, stream);
      return y.data();
    });
    ASSERT_FALSE(HasFailure());
  }
}

TEST(CudaExhaustive, AllFloatsToE4m3Scaled) {
  NARROW_REQUIRE_DEVICE();
  check_all_floats("fp8_e4m3:tensor", 0.0173f, OwnedStream());
}

TEST(CudaExhaustive, AllFloatsToE5m2Scaled) {
  NARROW_REQUIRE_DEVICE();
  check_all_floats("fp8_e5m2:tensor", 3.3e-4f, OwnedStream());
}

TEST(CudaExhaustive, AllFloatsToInt8Scaled) {
  NARROW_REQUIRE_DEVICE();
  check_all_floats("int8:tensor", 0.0731f, OwnedStream());
}

/// All finite bit patterns of a 16-bit type up to a largest magnitude, which starts every block and so makes its scale.
Tensor patterns_up_to(DType dtype, std::uint32_t limit, std::int64_t block, std::int64_t cols) {
  const std::int64_t rows = (65536 / (block - 1) * block + block + cols - 1) / cols;
  const Tensor x = Tensor::empty(dtype, {rows, cols});
  std::uint16_t* bits = x.as<std::uint16_t>();
  std::uint32_t pattern = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::uint32_t next = i % block == 0 ? limit : pattern++;
    bits[i] = static_cast<std::uint16_t>((next & 0x8000u) | std::min(next & 0x7FFFu, limit));
  }
  return x;
}

TEST(CudaExhaustive, AllHalvesUnderManyScales) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const char* text :
       {"fp8_e4m3:row",     "fp8_e5m2:row",    "int8:row",        "fp6_e3m2:row", "fp6_e2m3:row",      "fp5_e2m2:row",  "fp4_e2m1:row",
        "int4:row",         "fp8_e4m3:tensor", "fp8_e5m2:tensor", "int8:tensor",  "fp8_e4m3:block128", "int8:block128", "int4:block128",
        "fp4_e2m1:block32", "mxfp4",           "mxfp6_e3m2",      "mxfp6_e2m3",   "mxfp8_e4m3",        "msfp12",        "nvfp4"})
    for (const DType dtype : {DType::kF16, DType::kBf16})
      for (std::uint32_t step = 0; step < 24; ++step) {
        const Scheme scheme = Scheme::parse(text);
        constexpr std::int64_t kCols = 4096;
        const std::uint32_t largest = dtype == DType::kF16 ? 0x7BFFu : 0x7F7Fu;
        const std::uint32_t limit = step == 0 ? largest : (step == 1 ? 1u : step * 2654435761u % largest + 1u);
        const std::int64_t block = scale_grid(scheme, {1, kCols}).tile_cols;
        const Tensor host = patterns_up_to(dtype, limit, std::clamp<std::int64_t>(block, 16, kCols), kCols);
        const GuardedQuantized out(scheme, host.shape(), 0, stream);
        quantize(to_device(host, kDevice, stream), out.q, stream);
        expect_equal(quantize(host, scheme), out.q, stream,
                     std::string(text) + " " + std::string(name_of(dtype)) + " up to " + std::to_string(limit));
        ASSERT_FALSE(HasFailure());
      }
}

}  // namespace
}  // namespace narrow::cuda::testing
