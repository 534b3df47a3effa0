#include "kernels/cpu/quantize/plan.h"

#include <bit>
#include <cmath>
#include <limits>

#include "format/scale_rule.h"

namespace narrow::cpu {
namespace {

// Outputs beyond this size are written around the caches; about the size of a large last-level cache.
constexpr std::size_t kStreamBytes = std::size_t{32} << 20;
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

FloatPlan plan_float(const Format& format, Rounding rounding, Overflow overflow) {
  FloatPlan plan;
  const int m = format.mantissa_bits, lowest = 1 - format.bias;
  const std::int32_t largest = static_cast<std::int32_t>(format.max_code());
  const std::int32_t beyond = overflow == Overflow::kIeee && format.has_nan() ? largest + 1 : largest;
  plan.shift = 23 - m;
  plan.mantissa_bits = m;
  plan.lowest_field = lowest + 127;
  plan.offset = static_cast<std::uint32_t>(127 - format.bias) << 23;
  plan.round_offset = plan.offset - ((1u << (plan.shift - 1)) - 1u);
  plan.parity = (plan.offset >> plan.shift) & 1u;
  plan.subnormal_magic = static_cast<std::uint32_t>(lowest - m + 23 + 127) << 23;
  plan.hidden = 1 << m;
  plan.limit = rounding == Rounding::kTowardZero ? largest : beyond;
  plan.infinite_code = beyond;
  plan.sign_bit = 1u << (format.bits - 1);
  plan.sign_shift = 32 - format.bits;
  if (format.has_nan()) {
    plan.nan_code = encode(format, std::numeric_limits<float>::quiet_NaN()) & (plan.sign_bit - 1u);
    plan.nan_sign = plan.sign_bit;
  }
  plan.magnitude_mask = plan.sign_bit - 1u;
  plan.lowest = std::bit_cast<float>(static_cast<std::uint32_t>(plan.lowest_field) << 23);
  plan.special_from = plan.nan_from = kNever;
  if (format.has_nan() || format.exponent_bits == 8) {
    plan.special_from = plan.nan_from = largest + 1;
    if (format.has_infinity()) plan.nan_from = largest + 2;
    if (!format.has_nan()) plan.nan_from = kNever;  // the binade beyond fp32 decodes to infinity
  }
  return plan;
}

ElementKind kind_of(const Format& format) {
  if (format.is_float()) return ElementKind::kFloat;
  return format.is_integer() ? ElementKind::kInteger : ElementKind::kCodebook;
}

/// The smallest fp32 value that is encoded to code + 1.
float threshold_above(const Format& format, std::uint32_t code, Rounding rounding) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float low = codebook_value(format.codebook, code), high = codebook_value(format.codebook, code + 1);
  if (rounding == Rounding::kTowardZero) {
    if (low >= 0.0f) return high;
    return std::nextafter(high <= 0.0f ? low : 0.0f, kInfinity);
  }
  const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2.0;
  const float rounded = static_cast<float>(middle);
  const bool tie_goes_up = (code & 1u) != 0;
  const bool is_up = static_cast<double>(rounded) > middle || (static_cast<double>(rounded) == middle && tie_goes_up);
  return is_up ? rounded : std::nextafter(rounded, kInfinity);
}

ElementPlan plan_element(const Scheme& scheme, Rounding rounding, Overflow overflow) {
  const Format& format = scheme.element;
  ElementPlan plan;
  plan.kind = kind_of(format);
  plan.bits = format.bits;
  plan.mask = format.code_count() - 1u;
  if (format.is_float()) plan.format = plan_float(format, rounding, overflow);
  plan.is_even_grid = format.is_float() && format.exponent_bits == 1 && format.mantissa_bits >= 1;
  plan.is_half =
      format.is_float() && format.bits <= 8 && (format.exponent_bits < 5 || (format.exponent_bits == 5 && format.has_infinity()));
  if (format.is_integer()) {
    plan.unit = static_cast<float>(1 << format.fraction_bits);
    plan.high = static_cast<float>(format.max_code());
    plan.low = format.is_signed ? -plan.high : 0.0f;
  }
  if (plan.kind == ElementKind::kCodebook) {
    plan.thresholds = static_cast<int>(format.code_count()) - 1;
    for (int i = 0; i < plan.thresholds; ++i) plan.threshold[i] = threshold_above(format, static_cast<std::uint32_t>(i), rounding);
  }
  plan.has_table = format.bits <= 4 && !scheme.asymmetric;
  if (plan.has_table)
    for (std::uint32_t code = 0; code < format.code_count(); ++code) plan.value[code] = decode(format, code);
  return plan;
}

ScalePlan plan_scale(const Scheme& scheme, float outer) {
  ScalePlan plan;
  plan.present = scheme.has_scales();
  plan.storage = scheme.scale == kFp32 ? ScaleStorage::kFp32 : (scheme.scale == kE8m0 ? ScaleStorage::kExponent : ScaleStorage::kFloat);
  plan.bytes = scheme.scale.bits / 8;
  if (plan.storage == ScaleStorage::kFloat) plan.format = plan_float(scheme.scale, Rounding::kNearestEven, Overflow::kSaturate);
  plan.rule = scheme.rule;
  plan.asymmetric = scheme.asymmetric;
  plan.has_outer = scheme.has_outer_scale;
  plan.outer = outer;
  plan.largest = static_cast<float>(scheme.asymmetric ? static_cast<double>(scheme.element.max_code()) : scheme.element.largest());
  if (scheme.rule == ScaleRule::kSharedExponent) {
    plan.largest_exponent = largest_exponent(scheme.element);
    plan.lowest_exponent = scheme.is_msfp ? -126 : -127;
    plan.zero_exponent_code = scheme.is_msfp ? 0 : 127;
  }
  return plan;
}

/// Codes change at quotients of at most twelve significant bits that are no smaller than 2^-90: there the short form is proved.
bool has_short_boundaries(const Format& format) {
  if (format.is_integer()) return true;
  return format.is_float() && format.mantissa_bits <= 10 && format.exponent_bits < 8;
}

Quotient quotient_of(const QuantizeProblem& problem, const ScalePlan& scale) {
  if (!scale.present || scale.storage == ScaleStorage::kExponent) return Quotient::kMultiply;
  const bool is_short = problem.rounding != Rounding::kStochastic && has_short_boundaries(problem.scheme.element);
  return is_short ? Quotient::kReciprocal : Quotient::kDivide;
}

}  // namespace

QuantizePlan plan_of(const QuantizeProblem& problem) {
  QuantizePlan plan;
  plan.element = plan_element(problem.scheme, problem.rounding, problem.overflow);
  plan.scale = plan_scale(problem.scheme, problem.outer_scale);
  plan.quotient = quotient_of(problem, plan.scale);
  plan.stream = static_cast<std::size_t>(problem.rows) * problem.row_bytes >= kStreamBytes;
  return plan;
}

DequantizePlan plan_of(const DequantizeProblem& problem) {
  DequantizePlan plan;
  plan.element = plan_element(problem.scheme, Rounding::kNearestEven, Overflow::kSaturate);
  plan.scale = plan_scale(problem.scheme, problem.outer_scale);
  if (problem.dtype != DType::kF32)
    plan.output = plan_float(problem.dtype == DType::kBf16 ? kBf16 : kFp16, Rounding::kNearestEven, Overflow::kSaturate);
  const std::size_t bytes = problem.dtype == DType::kF32 ? 4 : 2;
  plan.stream = static_cast<std::size_t>(problem.rows) * static_cast<std::size_t>(problem.cols) * bytes >= kStreamBytes;
  return plan;
}

}  // namespace narrow::cpu
