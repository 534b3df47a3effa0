/// Laws of quantization, each a property of its own for every standard scheme, tried on random matrices by RapidCheck: it shrinks what
/// breaks one and prints the seed.

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck.h>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "methods/value_check.h"
#include "narrow/quantize.h"

namespace narrow {
namespace {

/// Values over eight powers of two, some of them zero.
Tensor any_matrix(DType dtype = DType::kF32) {
  const std::int64_t rows = *rc::gen::inRange(1, 6), cols = *rc::gen::inRange(1, 200);
  Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  std::uint64_t state = *rc::gen::arbitrary<std::uint64_t>();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x.as<float>()[i] = (state >> 20 & 15u) == 0
                           ? 0.0f
                           : std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31 - static_cast<int>(state & 7u));
  }
  return dtype == DType::kF32 ? x : convert(x, dtype);
}

bool same(const Buffer& a, const Buffer& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0; }
bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  return same(a.codes, b.codes) && same(a.scales, b.scales) && same(a.zero_points, b.zero_points) && a.outer_scale == b.outer_scale;
}

/// The cell of the scale grid that an element has; 0 where there is but one.
std::int64_t cell_of(const QuantizedTensor& q, std::int64_t i) {
  const ScaleGrid grid = q.grid();
  const std::int64_t cols = q.shape[1];
  return q.scheme.has_scales() && !grid.whole_tensor ? grid.grid_row(i / cols) * grid.cols + grid.grid_col(i % cols) : 0;
}

/// No element is further from its value than one step of its scale.
void stays_within_a_step(const Scheme& scheme) {
  const Tensor x = any_matrix();
  const QuantizedTensor q = quantize(x, scheme);
  RC_ASSERT(check_values(x, dequantize(q), q).first_violation == -1);
}

/// Of two elements with one scale the larger does not get the smaller value.
void keeps_the_order(const Scheme& scheme) {
  const Tensor x = any_matrix();
  const QuantizedTensor q = quantize(x, scheme);
  const Tensor y = dequantize(q);
  std::vector<std::int64_t> order(static_cast<std::size_t>(x.size()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t cell_a = cell_of(q, a), cell_b = cell_of(q, b);
    return cell_a != cell_b ? cell_a < cell_b : x.as<float>()[a] < x.as<float>()[b];
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (cell_of(q, order[i - 1]) == cell_of(q, order[i])) RC_ASSERT(y.as<float>()[order[i - 1]] <= y.as<float>()[order[i]]);
}

/// No other code of the element's scale is nearer.
void takes_the_nearest_code(const Scheme& scheme) {
  if (scheme.element.bits > 8) return;
  const Tensor x = any_matrix();
  const QuantizedTensor q = quantize(x, scheme);
  const Tensor y = dequantize(q);
  for (std::int64_t i = 0; i < x.size(); i += 7) {
    const std::int64_t cell = cell_of(q, i);
    const float scale =
        scheme.has_scales() ? effective_scale(scheme, load_scale_code(q.scales.data(), scheme.scale, cell), q.outer_scale) : 1.0f;
    const std::int32_t zero = scheme.asymmetric ? q.zero_points.as<std::uint8_t>()[cell] : 0;
    const double mine = std::fabs(static_cast<double>(x.as<float>()[i]) - static_cast<double>(y.as<float>()[i]));
    for (std::uint32_t code = 0; code < scheme.element.code_count(); ++code) {
      const double value = dequantize_element(scheme, code, scale, zero);
      const bool is_lowest =
          scheme.element.is_integer() && !scheme.asymmetric && scheme.element.bits > 1 && code == 1u << (scheme.element.bits - 1);
      if (!std::isfinite(value) || is_lowest) continue;  // the range of symmetric integers is narrow
      // quotients are rounded to fp32 before they are rounded to codes: ties may fall to either side
      RC_ASSERT(mine <= std::fabs(static_cast<double>(x.as<float>()[i]) - value) * (1.0 + 0x1p-16) + std::fabs(value) * 0x1p-20);
    }
  }
}

/// What is packed is what was coded: unused bits at the end of a row are zero.
void leaves_padding_zero(const Scheme& scheme) {
  const QuantizedTensor q = quantize(any_matrix(), scheme);
  const std::int64_t cols = q.shape[1];
  std::vector<std::uint8_t> again(q.row_bytes());
  for (std::int64_t row = 0; row < q.shape[0]; ++row) {
    const std::uint8_t* packed = q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes();
    std::fill(again.begin(), again.end(), std::uint8_t{0});
    for (std::int64_t col = 0; col < cols; ++col)
      write_code(again.data(), col, scheme.element.bits, read_code(packed, col, scheme.element.bits));
    RC_ASSERT(std::memcmp(again.data(), packed, again.size()) == 0);
  }
}

/// Rows that lie apart, with NaN between them, are the same rows.
void sees_through_strides(const Scheme& scheme) {
  const Tensor x = any_matrix();
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1], stride = cols + *rc::gen::inRange(1, 40);
  Tensor apart = Tensor::empty(DType::kF32, {rows, stride});
  std::fill_n(apart.as<float>(), apart.size(), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(x.as<float>() + row * cols, cols, apart.as<float>() + row * stride);
  RC_ASSERT(same(quantize(x, scheme), quantize(Tensor::borrow(apart.data(), DType::kF32, {rows, cols}, {stride, 1}), scheme)));
}

/// A 16-bit value and the same value in fp32 have one code.
void does_not_see_the_type(const Scheme& scheme) {
  const Tensor x = any_matrix(*rc::gen::element(DType::kF16, DType::kBf16));
  RC_ASSERT(same(quantize(x, scheme), quantize(convert(x, DType::kF32), scheme)));
}

/// The number of threads changes no bit.
void does_not_see_the_threads(const Scheme& scheme) {
  const Tensor x = any_matrix();
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const QuantizedTensor one = quantize(x, scheme);
  omp_set_num_threads(*rc::gen::inRange(2, 8));
  const QuantizedTensor many = quantize(x, scheme);
  omp_set_num_threads(before);
  RC_ASSERT(same(one, many));
}

/// Zeros are zeros again, under a scale that divides nothing by zero.
void keeps_zeros(const Scheme& scheme) {
  Tensor x = any_matrix();
  std::fill_n(x.as<float>(), x.size(), 0.0f);
  const Tensor y = dequantize(quantize(x, scheme));
  for (std::int64_t i = 0; i < y.size(); ++i) RC_ASSERT(y.as<float>()[i] == 0.0f);
}

/// Quantizing into memory that held something else gives what fresh memory gets.
void overwrites_what_was_there(const Scheme& scheme) {
  const Tensor x = any_matrix();
  QuantizedTensor used = allocate_quantized(scheme, x.shape());
  for (const Buffer* part : {&used.codes, &used.scales, &used.zero_points}) std::memset(part->data(), 0xAB, part->size());
  quantize_into(x, used);
  RC_ASSERT(same(used, quantize(x, scheme)));
}

struct Law {
  const char* name;
  void (*check)(const Scheme& scheme);
};

const Law kLaws[] = {
    {"StaysWithinAStep", stays_within_a_step},
    {"KeepsTheOrder", keeps_the_order},
    {"TakesTheNearestCode", takes_the_nearest_code},
    {"LeavesPaddingZero", leaves_padding_zero},
    {"SeesThroughStrides", sees_through_strides},
    {"DoesNotSeeTheType", does_not_see_the_type},
    {"DoesNotSeeTheThreads", does_not_see_the_threads},
    {"KeepsZeros", keeps_zeros},
    {"OverwritesWhatWasThere", overwrites_what_was_there},
};

class SchemeLaws : public testing::TestWithParam<std::tuple<Law, Scheme>> {};

TEST_P(SchemeLaws, Hold) {
  const auto& [law, scheme] = GetParam();
  omp_set_num_threads(1);  // the matrices are small; one law sets more
  EXPECT_TRUE(rc::check(std::string(law.name) + " of " + scheme.to_string(), [law = law, scheme = scheme] { law.check(scheme); }));
}

std::string name_of_case(const testing::TestParamInfo<SchemeLaws::ParamType>& info) {
  std::string name = std::get<0>(info.param).name + ("_" + std::get<1>(info.param).to_string());
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Standard, SchemeLaws, testing::Combine(testing::ValuesIn(kLaws), testing::ValuesIn(standard_schemes())),
                         name_of_case);

}  // namespace
}  // namespace narrow
