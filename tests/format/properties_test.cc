/// Laws that hold for every input, tried on random ones.

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "format/packing.h"
#include "narrow/codec.h"
#include "narrow/quantize.h"

namespace narrow {
namespace {

Format any_float_format() {
  const int e = *rc::gen::inRange(1, 9), m = *rc::gen::inRange(0, std::min(10, 15 - e) + 1);
  return parse_format("fp" + std::to_string(1 + e + m) + "_e" + std::to_string(e) + "m" + std::to_string(m));
}

Format any_format() {
  const int kind = *rc::gen::inRange(0, 6);
  const Format others[] = {kInt8, kInt4, kInt2, kNf4, kInt1};
  return kind < 5 ? others[kind] : any_float_format();
}

/// A finite fp32 value of any exponent.
float any_finite() {
  const std::uint32_t bits = *rc::gen::arbitrary<std::uint32_t>();
  const float x = std::bit_cast<float>(bits);
  return std::isfinite(x) ? x : std::bit_cast<float>(bits & 0xBFFFFFFFu);
}

/// A matrix of values in a range that no power-of-two scaling below leaves.
Tensor any_matrix() {
  const std::int64_t rows = *rc::gen::inRange(1, 6), cols = *rc::gen::inRange(1, 400);
  Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  std::uint64_t state = *rc::gen::arbitrary<std::uint64_t>();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x.as<float>()[i] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31 - static_cast<int>(state & 7u));
  }
  return x;
}

Scheme any_scheme() {
  const auto& all = standard_schemes();
  return all[*rc::gen::inRange<std::size_t>(0, all.size())];
}

bool same_bytes(const Buffer& a, const Buffer& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0; }

RC_GTEST_PROP(Codec, IsMonotone, ()) {
  const Format format = any_format();
  float low = any_finite(), high = any_finite();
  if (low > high) std::swap(low, high);
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero})
    RC_ASSERT(decode(format, encode(format, low, rounding)) <= decode(format, encode(format, high, rounding)));
}

RC_GTEST_PROP(Codec, IsIdempotent, ()) {
  const Format format = any_format();
  const std::uint32_t code = encode(format, any_finite());
  RC_ASSERT(encode(format, decode(format, code)) == code);
}

RC_GTEST_PROP(Codec, IsOddInFloatFormats, ()) {
  const Format format = any_float_format();
  const float x = any_finite();
  RC_ASSERT((encode(format, x) ^ encode(format, -x)) == 1u << (format.bits - 1));
}

RC_GTEST_PROP(Packing, RoundTrips, ()) {
  const int bits = *rc::gen::inRange(1, 17);
  const auto codes = *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 1u << bits));
  std::vector<std::uint8_t> packed(packed_bytes(static_cast<std::int64_t>(codes.size()), bits));
  for (std::size_t i = 0; i < codes.size(); ++i) write_code(packed.data(), static_cast<std::int64_t>(i), bits, codes[i]);
  for (std::size_t i = 0; i < codes.size(); ++i) RC_ASSERT(read_code(packed.data(), static_cast<std::int64_t>(i), bits) == codes[i]);
}

/// Scaling the input by a power of two scales fp32 scales and leaves codes alone.
RC_GTEST_PROP(Quantize, IsEquivariantUnderPowersOfTwo, ()) {
  Scheme scheme = any_scheme();
  RC_PRE(scheme.has_scales() && scheme.scale == kFp32);
  const Tensor x = any_matrix();
  const int exponent = *rc::gen::inRange(-20, 21);
  Tensor scaled = Tensor::empty(DType::kF32, x.shape());
  for (std::int64_t i = 0; i < x.size(); ++i) scaled.as<float>()[i] = std::ldexp(x.as<float>()[i], exponent);
  const QuantizedTensor a = quantize(x, scheme), b = quantize(scaled, scheme);
  RC_ASSERT(same_bytes(a.codes, b.codes));
  RC_ASSERT(same_bytes(a.zero_points, b.zero_points));
}

RC_GTEST_PROP(Quantize, SliceOfRowsIsSliceOfTheWhole, ()) {
  const Scheme scheme = any_scheme();
  RC_PRE(scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows == 1 && !scheme.has_outer_scale);
  const Tensor x = any_matrix();
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1], first = *rc::gen::inRange<std::int64_t>(0, rows);
  const QuantizedTensor whole = quantize(x, scheme);
  const QuantizedTensor part = quantize(Tensor::borrow(x.data() + first * cols * 4, DType::kF32, {rows - first, cols}), scheme);
  RC_ASSERT(std::memcmp(part.codes.data(), whole.codes.data() + static_cast<std::size_t>(first) * whole.row_bytes(), part.codes.size()) ==
            0);
  RC_ASSERT(std::memcmp(part.scales.data(), whole.scales.data() + (whole.scales.size() - part.scales.size()), part.scales.size()) == 0);
}

RC_GTEST_PROP(Quantize, ErrorIsAtMostHalfAStep, ()) {
  const Tensor x = any_matrix();
  const QuantizedTensor q = quantize(x, Scheme::parse("int8:row"));
  const Tensor y = dequantize(q);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double step = q.scales.as<float>()[i / x.shape()[1]];
    RC_ASSERT(std::fabs(static_cast<double>(x.as<float>()[i]) - static_cast<double>(y.as<float>()[i])) <= 0.5001 * step);
  }
}

/// The number of threads changes no bit; the tensor is large enough for many tiles.
TEST(Threads, DoNotChangeABit) {
  Tensor x = Tensor::empty(DType::kF32, {300, 1237});
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x.as<float>()[i] = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 1e-9f;
  }
  const int before = omp_get_max_threads();
  std::vector<Scheme> schemes = standard_schemes();
  schemes.push_back(Scheme::parse("int1:tensor"));
  for (const Scheme& scheme : schemes)
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
      omp_set_num_threads(1);
      const QuantizedTensor one = quantize(x, scheme, {.rounding = rounding, .seed = 3});
      const Tensor y_one = dequantize(one);
      for (const int threads : {2, 3, 8}) {
        omp_set_num_threads(threads);
        const QuantizedTensor many = quantize(x, scheme, {.rounding = rounding, .seed = 3});
        EXPECT_TRUE(same_bytes(one.codes, many.codes) && same_bytes(one.scales, many.scales) &&
                    same_bytes(one.zero_points, many.zero_points) && one.outer_scale == many.outer_scale)
            << scheme.to_string() << " " << threads;
        const Tensor y_many = dequantize(many);
        EXPECT_EQ(std::memcmp(y_one.data(), y_many.data(), y_one.byte_size()), 0) << scheme.to_string() << " " << threads;
      }
    }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace narrow
