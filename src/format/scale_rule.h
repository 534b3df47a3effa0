#pragma once
/// From a rectangle's statistics to its scale: the one place where the equations of docs/quantization.md stand.
/// Host and device, so that both backends store the same bits. fp32 divisions are IEEE divisions.

#include <bit>
#include <cstdint>

#include "narrow/codec.h"
#include "narrow/scheme.h"

namespace narrow {

/// A scale as stored, and the fp32 factor by which codes are multiplied (stored scale times outer scale).
struct ScaleCode {
  std::uint32_t code = 0;
  float effective = 1.0f;
};

struct ScaleAndZero {
  ScaleCode scale;
  std::uint8_t zero_point = 0;
};

/// floor(log2 x) of a positive finite x.
NARROW_HOST_DEVICE constexpr int floor_log2(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits >> 23) != 0) return static_cast<int>(bits >> 23) - 127;
  int exponent = -126;
  for (std::uint32_t mantissa = bits; (mantissa & 0x800000u) == 0; mantissa <<= 1) --exponent;
  return exponent;
}

/// floor(log2) of the element's largest value.
NARROW_HOST_DEVICE constexpr int largest_exponent(const Format& element) { return floor_log2(static_cast<float>(element.largest())); }

/// A positive scale in its storage format; one that would round to zero becomes the smallest positive one.
NARROW_HOST_DEVICE constexpr ScaleCode store_scale(const Format& storage, float scale, float outer) {
  if (storage.bits == 32) return {std::bit_cast<std::uint32_t>(scale), scale * outer};
  std::uint32_t code = encode(storage, scale);
  if (scale > 0.0f && decode(storage, code) == 0.0f) code = 1;
  return {code, decode(storage, code) * outer};
}

/// Symmetric: s = amax / largest (/ outer), s = 1 for an all-zero rectangle. amax is taken over the finite values.
NARROW_HOST_DEVICE constexpr ScaleCode scale_from_amax(const Scheme& scheme, float amax, float outer) {
  if (scheme.rule == ScaleRule::kSharedExponent) {
    constexpr Format kStorage = kE8m0;  // device code cannot refer to a namespace-scope object
    if (amax == 0.0f) return {scheme.is_msfp ? 0u : 127u, decode(kStorage, scheme.is_msfp ? 0u : 127u)};
    const int lowest = scheme.is_msfp ? -126 : -127;
    const int exponent = floor_log2(amax) - largest_exponent(scheme.element);
    const std::uint32_t code = static_cast<std::uint32_t>((exponent < lowest ? lowest : exponent) + 127);
    return {code, decode(kStorage, code)};
  }
  if (amax == 0.0f) return store_scale(scheme.scale, 1.0f, outer);
  float scale = amax / static_cast<float>(scheme.element.largest());
  if (scheme.has_outer_scale) scale = scale / outer;
  if (scale == 0.0f) scale = std::bit_cast<float>(1u);  // underflow: the smallest positive fp32
  return store_scale(scheme.scale, scale, outer);
}

/// The outer scale of a tensor: amax / (largest element * largest scale), 1 for an all-zero tensor.
NARROW_HOST_DEVICE constexpr float outer_scale_from_amax(const Scheme& scheme, float amax) {
  const float largest = static_cast<float>(scheme.element.largest() * scheme.scale.largest());
  const float scale = amax / largest;
  return scale > 0.0f ? scale : 1.0f;
}

/// int1: s = mean |x|; a zero rectangle keeps s = 0, so that it decodes to zero.
NARROW_HOST_DEVICE constexpr ScaleCode scale_from_sum(const Scheme& scheme, double absolute_sum, std::int64_t count) {
  return store_scale(scheme.scale, static_cast<float>(absolute_sum / static_cast<double>(count)), 1.0f);
}

/// Asymmetric: lo = min(0, min), hi = max(0, max); s = (hi - lo) / (2^b - 1); z = round(-lo / s), clamped.
NARROW_HOST_DEVICE constexpr ScaleAndZero scale_from_range(const Scheme& scheme, float minimum, float maximum) {
  const float low = minimum < 0.0f ? minimum : 0.0f;
  const float high = maximum > 0.0f ? maximum : 0.0f;
  const float steps = static_cast<float>(scheme.element.max_code());
  if (low == high) return {store_scale(scheme.scale, 1.0f, 1.0f), 0};
  const float range = high - low;
  float scale = range <= std::numeric_limits<float>::max() ? range / steps : high / steps - low / steps;
  if (scale == 0.0f) scale = std::bit_cast<float>(1u);
  const ScaleCode stored = store_scale(scheme.scale, scale, 1.0f);
  const float quotient = -low / stored.effective;
  const std::int32_t zero = detail::round_to_integer(std::bit_cast<std::uint32_t>(quotient), 0, 0,
                                                     static_cast<std::int32_t>(scheme.element.max_code()), Rounding::kNearestEven, 0);
  return {stored, static_cast<std::uint8_t>(zero)};
}

/// The code of one element: encode(x / s), or clamp(round(x / s) + z) where the scheme is asymmetric.
NARROW_HOST_DEVICE constexpr std::uint32_t quantize_element(const Scheme& scheme, float x, float effective_scale, std::int32_t zero_point,
                                                            Rounding rounding, Overflow overflow, std::uint32_t random) {
  const float quotient = x != x ? x : x / effective_scale;  // a NaN keeps its sign: GPUs drop it in arithmetic
  if (!scheme.asymmetric) return encode(scheme.element, quotient, rounding, overflow, random);
  const std::int32_t highest = static_cast<std::int32_t>(scheme.element.max_code());
  return static_cast<std::uint32_t>(
      detail::round_to_integer(std::bit_cast<std::uint32_t>(quotient), 0, -zero_point, highest - zero_point, rounding, random) +
      zero_point);
}

/// The value of one code.
NARROW_HOST_DEVICE constexpr float dequantize_element(const Scheme& scheme, std::uint32_t code, float effective_scale,
                                                      std::int32_t zero_point) {
  const float value = scheme.asymmetric ? static_cast<float>(static_cast<std::int32_t>(code) - zero_point) : decode(scheme.element, code);
  return value != value ? value : value * effective_scale;
}

/// The value of a stored scale.
NARROW_HOST_DEVICE constexpr float effective_scale(const Scheme& scheme, std::uint32_t code, float outer) {
  return decode(scheme.scale, code) * outer;
}

/// The sum of |x| behind int1's mean has one fixed order on every backend: segments of 1024 elements of a row, one
/// after the other; within a segment element i goes to partial sum i % 32, and the 32 fold by halves (16, 8, 4, 2, 1).
/// Rows add up in order. Values that are not finite count as zero.
inline constexpr int kSumSegment = 1024;
inline constexpr int kSumLanes = 32;

}  // namespace narrow
