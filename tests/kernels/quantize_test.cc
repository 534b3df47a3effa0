/// Every row of the quantize and dequantize tables gives the reference's bytes: codes with their padding bits, scales, zero
/// points and values, for every scheme, type and policy, on odd shapes, strides and offsets, and touches nothing beyond.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "dispatch/quantize.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "narrow/quantize.h"
#include "ops/tiles.h"

namespace narrow {
namespace {

/// Bytes between two guards, at an offset from alignment.
class Guarded {
 public:
  Guarded(std::size_t size, std::size_t offset) : size_(size), begin_(kGuard + offset), bytes_(size + begin_ + kGuard, kPattern) {}
  std::uint8_t* data() { return bytes_.data() + begin_; }
  std::size_t size() const { return size_; }
  bool guards_hold() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      if ((i < begin_ || i >= begin_ + size_) && bytes_[i] != kPattern) return false;
    return true;
  }
  bool operator==(const Guarded& other) const {
    return size_ == other.size_ && std::memcmp(bytes_.data() + begin_, other.bytes_.data() + other.begin_, size_) == 0;
  }

 private:
  static constexpr std::size_t kGuard = 128;
  static constexpr std::uint8_t kPattern = 0xA5;
  std::size_t size_, begin_;
  std::vector<std::uint8_t> bytes_;
};

enum class Fill { kNormal, kTies, kWild, kTiny, kHuge, kRare };  // rare: few values that are not finite, far apart
constexpr Fill kFills[] = {Fill::kNormal, Fill::kTies, Fill::kWild, Fill::kTiny, Fill::kHuge};

float draw(Fill fill, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  switch (fill) {
    case Fill::kNormal: return normal(generator);
    case Fill::kTies: return static_cast<float>(static_cast<int>(generator() % 513) - 256) / 8.0f;
    case Fill::kWild: return std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    case Fill::kTiny: return std::bit_cast<float>(static_cast<std::uint32_t>(generator() & 0x80FFFFFFu));
    case Fill::kRare:
      if (generator() % 3000 != 0) return normal(generator);
      return std::bit_cast<float>(0x7F800000u | static_cast<std::uint32_t>(generator() & 0x80000001u));
    case Fill::kHuge: return std::bit_cast<float>(static_cast<std::uint32_t>((generator() & 0x80FFFFFFu) | 0x7E000000u));
  }
  return 0.0f;
}

struct Case {
  Scheme scheme;
  Shape shape;
  DType dtype = DType::kF32;
  std::int64_t row_gap = 0;  ///< elements between rows
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  Fill fill = Fill::kNormal;
  bool given = false;
};

std::string describe(const Case& c) {
  return c.scheme.to_string() + " " + to_string(c.shape) + " " + std::string(name_of(c.dtype)) + " rounding " +
         std::to_string(static_cast<int>(c.rounding)) + " overflow " + std::to_string(static_cast<int>(c.overflow)) + " fill " +
         std::to_string(static_cast<int>(c.fill)) + (c.given ? " given" : "");
}

struct Result {
  Guarded codes, scales, zero_points;
  TileStats measured;
  bool has_nan = false, has_infinity = false;
  bool operator==(const Result& other) const {
    return codes == other.codes && scales == other.scales && zero_points == other.zero_points && measured.amax == other.measured.amax &&
           measured.minimum == other.measured.minimum && measured.maximum == other.measured.maximum &&
           measured.has_nan == other.measured.has_nan && measured.has_infinity == other.measured.has_infinity && has_nan == other.has_nan &&
           has_infinity == other.has_infinity;
  }
};

class Inputs {
 public:
  explicit Inputs(const Case& c) : case_(c), matrix_(as_matrices(c.shape)), stride_(matrix_.cols + c.row_gap) {
    std::mt19937 generator(static_cast<unsigned>(matrix_.cols) * 7u + static_cast<unsigned>(c.fill));
    const std::int64_t count = matrix_.total_rows() * stride_;
    wide_.resize(static_cast<std::size_t>(count));
    half_.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      wide_[at] = (i / stride_) % 5 == 4 ? 0.0f : draw(c.fill, generator);
      half_[at] = c.fill == Fill::kWild ? static_cast<std::uint16_t>(generator())
                                        : static_cast<std::uint16_t>(encode(c.dtype == DType::kBf16 ? kBf16 : kFp16, wide_[at]));
    }
    grid_ = scale_grid(c.scheme, c.shape);
    for (std::int64_t i = 0; i < grid_.count(); ++i) {
      given_.push_back(store_scale(c.scheme.scale, 0.01f + static_cast<float>(i % 7) * 0.3f, 1.0f).code);
      given_zeros_.push_back(static_cast<std::uint8_t>(static_cast<std::uint32_t>(i) % (c.scheme.element.max_code() + 1u)));
    }
  }

  Result run(const QuantizeKernel& kernel, std::size_t offset) const {
    const std::size_t cells = static_cast<std::size_t>(grid_.count());
    QuantizeProblem problem;
    problem.row_bytes = packed_row_bytes(case_.scheme, matrix_.cols);
    Result result{Guarded(static_cast<std::size_t>(matrix_.total_rows()) * problem.row_bytes, offset),
                  Guarded(cells * case_.scheme.scale.bits / 8u, 0),
                  Guarded(case_.scheme.asymmetric ? cells : 0, offset),
                  {}};
    problem.x = case_.dtype == DType::kF32 ? static_cast<const void*>(wide_.data()) : half_.data();
    problem.dtype = case_.dtype;
    problem.rows = matrix_.total_rows();
    problem.cols = matrix_.cols;
    problem.row_stride = stride_;
    problem.scheme = case_.scheme;
    problem.grid = grid_;
    problem.rounding = case_.rounding;
    problem.overflow = case_.overflow;
    problem.seed = 0x123456789ABCDEFu;
    problem.codes = result.codes.data();
    problem.scales = result.scales.data();
    problem.zero_points = result.zero_points.data();
    problem.scales_given = case_.given;
    if (case_.given)
      for (std::size_t i = 0; i < cells; ++i) {
        store_scale_code(problem.scales, case_.scheme.scale, static_cast<std::int64_t>(i), given_[i]);
        if (case_.scheme.asymmetric) problem.zero_points[i] = given_zeros_[i];
      }
    const bool free = case_.given || !case_.scheme.has_scales();
    for (const Tile& tile : split_tiles(grid_, problem.rows, problem.cols, true)) {
      const TileStats stats = kernel.measure(problem, tile);
      result.measured.amax = std::max(result.measured.amax, stats.amax);
      result.measured.minimum = std::min(result.measured.minimum, stats.minimum);
      result.measured.maximum = std::max(result.measured.maximum, stats.maximum);
      result.measured.has_nan |= stats.has_nan;
      result.measured.has_infinity |= stats.has_infinity;
    }
    if (case_.scheme.has_outer_scale) problem.outer_scale = outer_scale_from_amax(case_.scheme, result.measured.amax);
    for (const Tile& tile : split_tiles(grid_, problem.rows, problem.cols, free)) {
      const TileStats stats = kernel.run(problem, tile);
      if (free) continue;  // a kernel tells what it learned only where it looked
      result.has_nan |= stats.has_nan;
      result.has_infinity |= stats.has_infinity;
    }
    return result;
  }

 private:
  Case case_;
  MatrixShape matrix_;
  std::int64_t stride_;
  ScaleGrid grid_;
  std::vector<float> wide_;
  std::vector<std::uint16_t> half_;
  std::vector<std::uint32_t> given_;
  std::vector<std::uint8_t> given_zeros_;
};

void expect_reference_bits(const Case& c) {
  const Inputs inputs(c);
  Result expected = inputs.run(reference::kQuantize, 0);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    for (const std::size_t offset : {std::size_t{0}, std::size_t{3}}) {
      Result actual = inputs.run(kernel, offset);
      ASSERT_TRUE(actual.codes.guards_hold() && actual.scales.guards_hold() && actual.zero_points.guards_hold())
          << kernel.name << " " << describe(c);
      ASSERT_TRUE(actual.scales == expected.scales) << kernel.name << " scales of " << describe(c);
      ASSERT_TRUE(actual.zero_points == expected.zero_points) << kernel.name << " zero points of " << describe(c);
      for (std::size_t i = 0; i < expected.codes.size(); ++i)
        ASSERT_EQ(+actual.codes.data()[i], +expected.codes.data()[i]) << kernel.name << " byte " << i << " of " << describe(c);
      ASSERT_TRUE(actual == expected) << kernel.name << " statistics of " << describe(c);
    }
  }
}

/// The standard schemes, and others with odd blocks, odd formats and unusual pairs.
std::vector<Scheme> schemes() {
  std::vector<Scheme> all = standard_schemes();
  // clang-format off
  constexpr const char* kOthers[] = {
      "int8:block3", "int4:block24", "fp6_e3m2:block1000", "fp8_e4m3:3x5", "int1:tensor", "int1:3x40", "int1:block2000:scale=fp16",
      "int2:col", "int3:row", "int3:block12:asym", "int8:col:asym", "fp2_e1m0:row", "fp9_e8m0:none", "fp12_e8m3:row", "fp15_e8m6:row",
      "fp11_e5m5:block16", "fp10_e4m5:none", "fp13_e6m6:row", "fp14_e3m10:row", "fp16_e7m8:none", "fp7_e5m1:block8", "fp16:row",
      "bf16:block32", "fp8_e5m2:none", "fp4_e2m1:none", "nf4:tensor", "nf4:col", "int8:block64:scale=fp8_e4m3",
      "int8:block16:asym:scale=e8m0", "fp8_e4m3:block16:scale=bf16", "fp3_e1m1:block40:scale=fp8_e4m3", "int2:2x7:asym"};
  // clang-format on
  for (const char* text : kOthers) all.push_back(Scheme::parse(text));
  return all;
}

class QuantizeRows : public testing::TestWithParam<Scheme> {};

TEST_P(QuantizeRows, EveryPolicyTypeAndFill) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic})
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kIeee})
        for (const Fill fill : kFills) {
          expect_reference_bits({GetParam(), {7, 277}, dtype, 0, rounding, overflow, fill});
          if (HasFatalFailure()) return;
        }
}

TEST_P(QuantizeRows, ShapesStridesAndCuts) {
  for (const Shape& shape : {Shape{1}, Shape{5}, Shape{3, 16}, Shape{2, 129}, Shape{2, 3, 65}, Shape{3, 2047}, Shape{2, 2049},
                             Shape{2, 4104}, Shape{3, 4160}, Shape{2, 3, 2, 33}, Shape{130, 140}, Shape{1, 70001}})
    for (const std::int64_t gap : {0, 11})
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        expect_reference_bits({GetParam(), shape, dtype, gap});
        if (HasFatalFailure()) return;
      }
}

/// Rows and blocks of whole vectors, many to a row: some are finite, some are not, and scales change from one to the next.
TEST_P(QuantizeRows, LongRows) {
  for (const Shape& shape : {Shape{5, 320}, Shape{12, 2112}, Shape{3, 6208}})
    for (const DType dtype : {DType::kF32, DType::kF16})
      for (const Fill fill : {Fill::kTies, Fill::kTiny, Fill::kHuge, Fill::kRare}) {
        expect_reference_bits({GetParam(), shape, dtype, 0, Rounding::kNearestEven, Overflow::kSaturate, fill});
        if (HasFatalFailure()) return;
      }
}

TEST_P(QuantizeRows, GivenScales) {
  if (!GetParam().has_scales() || GetParam().has_outer_scale) return;
  const auto check = [&](const Shape& shape, Rounding rounding, Fill fill) {
    if (!HasFatalFailure()) expect_reference_bits({GetParam(), shape, DType::kF32, 0, rounding, Overflow::kIeee, fill, true});
  };
  // Columns of the longest rows are cut; where instructions are emulated they get one fill, any bits as values.
  const bool emulated = std::getenv("NARROW_EMULATED") != nullptr;
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic})
    for (const Fill fill : kFills) {
      check({3, 277}, rounding, fill);
      check({2, 4103}, rounding, fill);
      if (!emulated || fill == Fill::kWild) check({2, 70001}, rounding, fill);
    }
}

/// Random codes, whether an encoder would make them or not; random scales, zero points within the codes.
void expect_reference_values(const Scheme& scheme, const Shape& shape, DType dtype) {
  const MatrixShape matrix = as_matrices(shape);
  DequantizeProblem problem;
  problem.scheme = scheme;
  problem.grid = scale_grid(scheme, shape);
  problem.rows = matrix.total_rows();
  problem.cols = matrix.cols;
  problem.row_bytes = packed_row_bytes(scheme, matrix.cols);
  problem.dtype = dtype;
  problem.outer_scale = scheme.has_outer_scale ? 0.37f : 1.0f;
  std::mt19937 generator(5);
  const std::size_t cells = static_cast<std::size_t>(problem.grid.count());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(problem.rows) * problem.row_bytes), scales(cells * scheme.scale.bits / 8u),
      zeros(cells);
  for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(generator());
  for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(generator());
  for (std::uint8_t& byte : zeros) byte = static_cast<std::uint8_t>(generator() % (scheme.element.max_code() + 1u));
  problem.codes = codes.data();
  problem.scales = scales.data();
  problem.zero_points = zeros.data();

  const auto run = [&](const DequantizeKernel& kernel, std::size_t offset) {
    Guarded y(static_cast<std::size_t>(problem.rows * problem.cols) * (dtype == DType::kF32 ? 4u : 2u), offset);
    problem.y = y.data();
    for (const Tile& tile : split_tiles(problem.grid, problem.rows, problem.cols, true)) kernel.run(problem, tile);
    return y;
  };
  const Guarded expected = run(reference::kDequantize, 0);
  for (const DequantizeKernel& kernel : dequantize_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    for (const std::size_t offset : {std::size_t{0}, std::size_t{4}}) {
      Guarded actual = run(kernel, offset);
      ASSERT_TRUE(actual.guards_hold()) << kernel.name << " " << scheme.to_string() << " " << to_string(shape);
      Guarded wanted = expected;
      for (std::int64_t i = 0; i < problem.rows * problem.cols; ++i) {
        const float a = load_value(actual.data(), dtype, i), b = load_value(wanted.data(), dtype, i);
        if (std::isnan(a) && std::isnan(b)) continue;  // the sign and payload of a product with NaN are not defined
        ASSERT_EQ(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b))
            << kernel.name << " element " << i << " of " << scheme.to_string() << " " << to_string(shape) << " " << name_of(dtype);
      }
    }
  }
}

TEST_P(QuantizeRows, Dequantize) {
  for (const Shape& shape : {Shape{1}, Shape{5}, Shape{3, 16}, Shape{2, 129}, Shape{2, 3, 65}, Shape{3, 2047}, Shape{2, 4104},
                             Shape{2, 3, 2, 33}, Shape{80, 300}, Shape{1, 70001}})
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      expect_reference_values(GetParam(), shape, dtype);
      if (HasFatalFailure()) return;
    }
}

std::string name_of_case(const testing::TestParamInfo<Scheme>& info) {
  std::string name = info.param.to_string();
  for (char& c : name)
    if (c == ':' || c == '=') c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(AllSchemes, QuantizeRows, testing::ValuesIn(schemes()), name_of_case);

/// Outputs beyond the caches are written around them: the same bytes.
TEST(QuantizeRowsLarge, StreamedOutputsAreTheSame) {
  Tensor x = Tensor::empty(DType::kF32, {8200, 8192});
  std::mt19937 generator(1);
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = static_cast<float>(static_cast<std::int32_t>(generator())) * 1e-9f;
  for (const char* text : {"int8:row", "int8:block128", "fp8_e4m3:row", "fp8_e4m3:block128", "fp6_e3m2:row", "nvfp4", "int4:block128"}) {
    const Scheme scheme = Scheme::parse(text);
    const QuantizedTensor large = quantize(x, scheme);
    const Tensor y = dequantize(large);
    const std::int64_t rows = 100, first = 8000;
    if (scheme.has_outer_scale) continue;
    const Tensor part = Tensor::borrow(x.data() + first * 8192 * 4, DType::kF32, {rows, 8192});
    const QuantizedTensor small = quantize(part, scheme);
    EXPECT_EQ(std::memcmp(small.codes.data(), large.codes.data() + static_cast<std::size_t>(first) * large.row_bytes(), small.codes.size()),
              0)
        << text;
    const Tensor z = dequantize(small);
    EXPECT_EQ(std::memcmp(z.data(), y.data() + first * 8192 * 4, z.byte_size()), 0) << text;
  }
}

}  // namespace
}  // namespace narrow
