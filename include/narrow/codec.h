#pragma once
/// One encode and one decode for every format, constexpr, on host and device, in integer arithmetic alone:
/// the result depends on nothing but the arguments (no rounding mode, no flush-to-zero, no -ffast-math).
/// These two functions define the codes; every fast kernel is tested against them.

#include <bit>
#include <cstdint>

#include "narrow/format.h"

namespace narrow {

enum class Rounding : std::uint8_t { kNearestEven, kTowardZero, kStochastic };  ///< how a value between two codes is rounded

/// What a value beyond the largest finite one becomes.
enum class Overflow : std::uint8_t {
  kSaturate,  ///< the largest finite value
  kIeee,      ///< infinity; NaN in a format that has only NaN; the largest value in a format that has neither
};

/// 32 random bits for an element: a counter-based generator, keyed by (seed, index), so that they do not depend
/// on threads or backends. Philox 2x32, ten rounds (Salmon et al. 2011), counter = index, key = folded seed; first word.
NARROW_HOST_DEVICE constexpr std::uint32_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint32_t left = static_cast<std::uint32_t>(index);
  std::uint32_t right = static_cast<std::uint32_t>(index >> 32) ^ static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t key = static_cast<std::uint32_t>(seed);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product = std::uint64_t{0xD256D193u} * left;
    left = static_cast<std::uint32_t>(product >> 32) ^ key ^ right;
    right = static_cast<std::uint32_t>(product);
    key += 0x9E3779B9u;
  }
  return left;
}

namespace detail {

/// floor(value / 2^shift), rounded by what was cut off. random is used by stochastic rounding alone:
/// up if and only if the cut-off fraction, as a 32-bit fixed-point number, exceeds it.
NARROW_HOST_DEVICE constexpr std::uint32_t shift_right_rounded(std::uint32_t value, int shift, Rounding rounding, std::uint32_t random) {
  if (shift <= 0) return value << -shift;
  const std::uint64_t wide = value;
  const std::uint64_t kept = shift < 64 ? wide >> shift : 0;
  const std::uint64_t cut = shift < 64 ? wide & ((std::uint64_t{1} << shift) - 1) : wide;
  bool up = false;
  if (rounding == Rounding::kNearestEven && shift <= 32) {
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    up = cut > half || (cut == half && (kept & 1u) != 0);
  } else if (rounding == Rounding::kStochastic) {
    const std::uint64_t fraction = shift <= 32 ? cut << (32 - shift) : (shift < 64 ? cut >> (shift - 32) : 0);
    up = fraction > random;
  }
  return static_cast<std::uint32_t>(kept) + (up ? 1u : 0u);
}

/// The magnitude code (sign left out) of a finite |x| given as fp32 bits, not yet saturated.
NARROW_HOST_DEVICE constexpr std::uint32_t encode_magnitude(const Format& format, std::uint32_t magnitude, Rounding rounding,
                                                            std::uint32_t random) {
  const int field = static_cast<int>(magnitude >> 23);
  const std::uint32_t significand = (magnitude & 0x7FFFFFu) | (field > 0 ? 0x800000u : 0u);
  const int exponent = (field > 0 ? field : 1) - 127;  // |x| = significand * 2^(exponent - 23)
  const int lowest = 1 - format.bias;                  // the exponent of the subnormals and of the first binade
  const int binade = exponent > lowest ? exponent - lowest : 0;
  // In units of the spacing 2^(lowest + binade - M), |x| is significand * 2^-(23 - M - exponent + lowest + binade).
  const int shift = 23 - format.mantissa_bits + (lowest + binade - exponent);
  const std::uint32_t offset = static_cast<std::uint32_t>(binade) << format.mantissa_bits;
  if (format.mantissa_bits == 0 && rounding == Rounding::kNearestEven && shift >= 1 && shift <= 32) {
    // Without mantissa bits the even code is not the even multiple of the spacing: decide ties by the code.
    const std::uint32_t low = static_cast<std::uint32_t>(std::uint64_t{significand} >> shift);
    const std::uint64_t cut = std::uint64_t{significand} - (std::uint64_t{low} << shift);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    const std::uint32_t code = low + offset;
    return code + ((cut > half || (cut == half && (code & 1u) != 0)) ? 1u : 0u);
  }
  return shift_right_rounded(significand, shift, rounding, random) + offset;
}
/// The code of a float format for the fp32 number with these bits.
NARROW_HOST_DEVICE constexpr std::uint32_t encode_float(const Format& format, std::uint32_t bits, Rounding rounding, Overflow overflow,
                                                        std::uint32_t random) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 31) << (format.bits - 1);
  const std::uint32_t all_ones = (1u << (format.bits - 1)) - 1u;
  if (magnitude > 0x7F800000u) {  // NaN keeps its sign; formats without one give the zero code
    if (!format.has_nan()) return 0;
    const std::uint32_t quiet = format.mantissa_bits > 0 ? 1u << (format.mantissa_bits - 1) : 0u;
    return sign | (format.has_infinity() ? (all_ones - ((1u << format.mantissa_bits) - 1u)) | quiet : all_ones);
  }
  const std::uint32_t largest = format.max_code();
  const std::uint32_t code = magnitude == 0x7F800000u ? largest + 1u : encode_magnitude(format, magnitude, rounding, random);
  if (code <= largest) return sign | code;
  const bool beyond = overflow == Overflow::kIeee && format.has_nan() && (rounding != Rounding::kTowardZero || magnitude == 0x7F800000u);
  return sign | (beyond ? largest + 1u : largest);  // the code after the largest is Inf, or NaN in "fn" formats
}

/// An fp32 value to an integer in [low, high], fp32 bits in, exact ties by the rounding.
NARROW_HOST_DEVICE constexpr std::int32_t round_to_integer(std::uint32_t bits, int fraction_bits, std::int32_t low, std::int32_t high,
                                                           Rounding rounding, std::uint32_t random) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0;
  const bool negative = (bits >> 31) != 0;
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + fraction_bits;
  std::int32_t value = 0x40000000;
  if (exponent < 29) {
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | ((magnitude >> 23) != 0 ? 0x800000u : 0u);
    value = static_cast<std::int32_t>(shift_right_rounded(significand, 23 - exponent, rounding, random));
  }
  if (negative) value = -value;
  return value < low ? low : (value > high ? high : value);
}

/// The nearest entry of an ascending table; a tie goes to the even code.
NARROW_HOST_DEVICE constexpr std::uint32_t encode_codebook(const Format& format, float x, Rounding rounding, std::uint32_t random) {
  if (x != x) return 0;
  std::uint32_t code = 0;
  while (code + 1 < format.code_count() && codebook_value(format.codebook, code + 1) <= x) ++code;
  if (code + 1 == format.code_count()) return code;
  const double low = codebook_value(format.codebook, code), high = codebook_value(format.codebook, code + 1);
  const double value = x;
  if (value <= low) return code;
  switch (rounding) {
    case Rounding::kTowardZero: return low >= 0.0 ? code : (high <= 0.0 ? code + 1u : (value > 0.0 ? code + 1u : code));
    case Rounding::kStochastic: return code + ((value - low) * 4294967296.0 > (high - low) * random ? 1u : 0u);
    case Rounding::kNearestEven: break;
  }
  const double twice = 2.0 * value, middle = low + high;  // exact: both are sums of two floats of like magnitude
  return code + ((twice > middle || (twice == middle && (code & 1u) != 0)) ? 1u : 0u);
}

/// e8m0: the nearest power of two, a tie to the even code; below 2^-127 the smallest; negative and NaN give NaN.
NARROW_HOST_DEVICE constexpr std::uint32_t encode_exponent(std::uint32_t bits, Rounding rounding, Overflow overflow, std::uint32_t random) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u || (bits >> 31) != 0) return 0xFFu;
  if (magnitude == 0x7F800000u) return overflow == Overflow::kIeee ? 0xFFu : 0xFEu;
  const std::uint32_t field = magnitude >> 23, mantissa = magnitude & 0x7FFFFFu;
  if (field == 0) {  // below 2^-126: the codes 0 (2^-127, mantissa 2^22) and 1 (2^-126, mantissa 2^23)
    if (mantissa <= 0x400000u) return 0;
    const std::uint32_t cut = mantissa - 0x400000u;
    if (rounding == Rounding::kTowardZero) return 0;
    if (rounding == Rounding::kStochastic) return (std::uint64_t{cut} << 10) > random ? 1u : 0u;
    return cut > 0x200000u ? 1u : 0u;  // the tie goes to code 0, the even one
  }
  bool up = false;
  if (rounding == Rounding::kNearestEven) up = mantissa > 0x400000u || (mantissa == 0x400000u && (field & 1u) != 0);
  if (rounding == Rounding::kStochastic) up = (std::uint64_t{mantissa} << 9) > random;
  const std::uint32_t code = field + (up ? 1u : 0u);
  return code <= 0xFEu ? code : (overflow == Overflow::kIeee ? 0xFFu : 0xFEu);
}

}  // namespace detail

/// The code of x, in the low bits. random: random_bits(seed, element index), for stochastic rounding alone.
NARROW_HOST_DEVICE constexpr std::uint32_t encode(const Format& format, float x, Rounding rounding = Rounding::kNearestEven,
                                                  Overflow overflow = Overflow::kSaturate, std::uint32_t random = 0) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  switch (format.kind) {
    case FormatKind::kFloat: return format.bits == 32 ? bits : detail::encode_float(format, bits, rounding, overflow, random);
    case FormatKind::kInteger: {
      const std::int32_t high = static_cast<std::int32_t>(format.max_code());
      const std::int32_t value = detail::round_to_integer(bits, format.fraction_bits, format.is_signed ? -high : 0, high, rounding, random);
      return static_cast<std::uint32_t>(value) & (format.code_count() - 1u);
    }
    case FormatKind::kCodebook: return detail::encode_codebook(format, x, rounding, random);
    case FormatKind::kExponent: return detail::encode_exponent(bits, rounding, overflow, random);
  }
  return 0;
}

/// The value of a code; exact in fp32 for every format of at most 16 bits.
NARROW_HOST_DEVICE constexpr float decode(const Format& format, std::uint32_t code) {
  switch (format.kind) {
    case FormatKind::kCodebook: return codebook_value(format.codebook, code);
    case FormatKind::kExponent:
      if (code >= 0xFFu) return std::numeric_limits<float>::quiet_NaN();
      return std::bit_cast<float>(code == 0 ? 0x400000u : code << 23);
    case FormatKind::kInteger: {
      std::int32_t value = static_cast<std::int32_t>(code & (format.code_count() - 1u));
      if (format.is_signed && (value >> (format.bits - 1)) != 0) value -= static_cast<std::int32_t>(format.code_count());
      return static_cast<float>(value) * std::bit_cast<float>(static_cast<std::uint32_t>(127 - format.fraction_bits) << 23);
    }
    case FormatKind::kFloat: break;
  }
  if (format.bits == 32) return std::bit_cast<float>(code);
  const std::uint32_t sign = ((code >> (format.bits - 1)) & 1u) << 31;
  const std::uint32_t magnitude = code & ((1u << (format.bits - 1)) - 1u);
  const std::uint32_t mantissa = magnitude & ((1u << format.mantissa_bits) - 1u);
  const int field = static_cast<int>(magnitude >> format.mantissa_bits);
  if (format.has_nan() && magnitude > format.max_code()) {
    const bool infinite = format.has_infinity() && mantissa == 0;
    return std::bit_cast<float>(sign | (infinite ? 0x7F800000u : 0x7FC00000u));
  }
  // value = significand * 2^(exponent - M); shift the significand's top bit to bit 23 to make an fp32.
  std::uint32_t significand = field > 0 ? mantissa | (1u << format.mantissa_bits) : mantissa;
  if (significand == 0) return std::bit_cast<float>(sign);
  int exponent = (field > 0 ? field : 1) - format.bias - format.mantissa_bits + 23;
  for (; (significand & 0x800000u) == 0; significand <<= 1) --exponent;
  if (exponent > 127) return std::bit_cast<float>(sign | 0x7F800000u);
  if (exponent < -126) return std::bit_cast<float>(sign | (significand >> (-126 - exponent)));  // exact: M <= 10
  return std::bit_cast<float>(sign | (static_cast<std::uint32_t>(exponent + 127) << 23) | (significand & 0x7FFFFFu));
}

static_assert(decode(kFp8E4m3, 0x7E) == 448.0f);
static_assert(decode(kFp4E2m1, 0x1) == 0.5f);
static_assert(encode(kFp8E4m3, 1e9f) == 0x7E);
static_assert(encode(kFp6E3m2, -28.0f) == 0x3F);
static_assert(encode(kInt4, -9.0f) == 0x9);                  // -7: the symmetric range is narrow
static_assert(decode(msfp_element(3), 0x7) == 7.0f / 4.0f);  // k * 2^-(m-1)

}  // namespace narrow
