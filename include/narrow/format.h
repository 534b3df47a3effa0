#pragma once
/// Number formats: what one code means. A format says nothing about scales or memory layout.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#if defined(__CUDACC__)
#define NARROW_HOST_DEVICE __host__ __device__  // for functions that kernels call too
#else
#define NARROW_HOST_DEVICE
#endif

namespace narrow {

/// How a code turns into a value.
enum class FormatKind : std::uint8_t {
  kFloat,     ///< sign, exponent, mantissa
  kInteger,   ///< two's complement, or unsigned; value = code * 2^-fraction_bits
  kCodebook,  ///< value = table[code], the table ascending
  kExponent,  ///< e8m0: value = 2^(code - 127), 0xFF = NaN; scales only
};

/// Which codes of a float format are not finite numbers.
enum class Specials : std::uint8_t {
  kNone,     ///< every code is a finite number (FP6, FP5, FP4, FP3)
  kNanOnly,  ///< the all-ones magnitude is NaN, there is no infinity (E4M3 "fn", e8m0)
  kIeee,     ///< the all-ones exponent holds infinity and NaN (E5M2, fp16, bf16, fp32)
};

/// The value tables of codebook formats, by name.
enum class Codebook : std::uint8_t { kNone, kSign, kNf4 };

/// A number format as data.
///   float:    value = (-1)^s * 2^(e - bias) * (1 + m / 2^M)   for e > 0
///             value = (-1)^s * 2^(1 - bias) * m / 2^M         for e = 0
///   integer:  value = code * 2^-fraction_bits
struct Format {
  FormatKind kind = FormatKind::kFloat;
  std::uint8_t bits = 0;
  std::uint8_t exponent_bits = 0;
  std::uint8_t mantissa_bits = 0;  ///< floats: stored mantissa bits; integers: magnitude bits
  std::int16_t bias = 0;           ///< exponent bias, of floats alone; not a zero point
  Specials specials = Specials::kNone;
  bool is_signed = true;
  std::uint8_t fraction_bits = 0;  ///< of integers: binary digits after the point (mxint8: 6)
  Codebook codebook = Codebook::kNone;

  friend constexpr bool operator==(const Format&, const Format&) = default;

  /// The number of codes.
  NARROW_HOST_DEVICE constexpr std::uint32_t code_count() const { return bits >= 32 ? 0u : 1u << bits; }

  /// The code of the largest finite value. Of the floats with eight exponent bits and no specials the
  /// top binade lies beyond fp32; it is never produced, so the largest code is the one below it.
  NARROW_HOST_DEVICE constexpr std::uint32_t max_code() const;

  /// The largest finite value; the smallest positive normal and subnormal (the smallest positive value).
  NARROW_HOST_DEVICE constexpr double largest() const;
  NARROW_HOST_DEVICE constexpr double smallest_normal() const;
  NARROW_HOST_DEVICE constexpr double smallest_positive() const;

  NARROW_HOST_DEVICE constexpr bool has_nan() const { return specials != Specials::kNone; }
  NARROW_HOST_DEVICE constexpr bool has_infinity() const { return specials == Specials::kIeee; }
  NARROW_HOST_DEVICE constexpr bool is_float() const { return kind == FormatKind::kFloat; }
  NARROW_HOST_DEVICE constexpr bool is_integer() const { return kind == FormatKind::kInteger; }
};

/// 2^exponent as a double, for any exponent a format can have.
NARROW_HOST_DEVICE constexpr double power_of_two(int exponent) {
  double result = 1.0;
  const double factor = exponent < 0 ? 0.5 : 2.0;
  for (int i = exponent < 0 ? -exponent : exponent; i > 0; --i) result *= factor;
  return result;
}

/// A float format with the standard bias 2^(E-1) - 1.
NARROW_HOST_DEVICE constexpr Format float_format(int exponent_bits, int mantissa_bits, Specials specials = Specials::kNone) {
  Format format;
  format.kind = FormatKind::kFloat;
  format.bits = static_cast<std::uint8_t>(1 + exponent_bits + mantissa_bits);
  format.exponent_bits = static_cast<std::uint8_t>(exponent_bits);
  format.mantissa_bits = static_cast<std::uint8_t>(mantissa_bits);
  format.bias = static_cast<std::int16_t>((1 << (exponent_bits - 1)) - 1);
  format.specials = specials;
  return format;
}

/// A signed integer format; its symmetric range leaves out the most negative code.
NARROW_HOST_DEVICE constexpr Format int_format(int bits, int fraction_bits = 0) {
  Format format;
  format.kind = FormatKind::kInteger;
  format.bits = static_cast<std::uint8_t>(bits);
  format.mantissa_bits = static_cast<std::uint8_t>(bits - 1);
  format.fraction_bits = static_cast<std::uint8_t>(fraction_bits);
  return format;
}

/// An unsigned integer format: the codes of asymmetric quantization.
NARROW_HOST_DEVICE constexpr Format uint_format(int bits) {
  Format format = int_format(bits);
  format.mantissa_bits = static_cast<std::uint8_t>(bits);
  format.is_signed = false;
  return format;
}

NARROW_HOST_DEVICE constexpr Format codebook_format(Codebook codebook, int bits) {  ///< a table of 2^bits values
  Format format;
  format.kind = FormatKind::kCodebook;
  format.bits = static_cast<std::uint8_t>(bits);
  format.codebook = codebook;
  return format;
}

/// The element of an MSFP box: a sign and an m-bit magnitude k without a hidden one, value = +-k * 2^-(m-1).
/// That is a float of one exponent bit and m-1 mantissa bits: with bias 1 its two binades form one even grid.
NARROW_HOST_DEVICE constexpr Format msfp_element(int magnitude_bits) {
  Format format = float_format(1, magnitude_bits - 1);
  format.bias = 1;
  return format;
}

inline constexpr Format kFp32 = float_format(8, 23, Specials::kIeee);
inline constexpr Format kFp16 = float_format(5, 10, Specials::kIeee);
inline constexpr Format kBf16 = float_format(8, 7, Specials::kIeee);
inline constexpr Format kFp8E5m2 = float_format(5, 2, Specials::kIeee);
inline constexpr Format kFp8E4m3 = float_format(4, 3, Specials::kNanOnly);
inline constexpr Format kFp6E3m2 = float_format(3, 2);
inline constexpr Format kFp6E2m3 = float_format(2, 3);
inline constexpr Format kFp5E3m1 = float_format(3, 1);
inline constexpr Format kFp5E2m2 = float_format(2, 2);
inline constexpr Format kFp4E2m1 = float_format(2, 1);
inline constexpr Format kFp4E3m0 = float_format(3, 0);
inline constexpr Format kFp3E2m0 = float_format(2, 0);
inline constexpr Format kE8m0 = {FormatKind::kExponent, 8, 8, 0, 127, Specials::kNanOnly, false, 0, Codebook::kNone};
inline constexpr Format kInt8 = int_format(8);
inline constexpr Format kInt4 = int_format(4);
inline constexpr Format kInt3 = int_format(3);
inline constexpr Format kInt2 = int_format(2);
inline constexpr Format kUint8 = uint_format(8);
inline constexpr Format kUint4 = uint_format(4);
inline constexpr Format kUint3 = uint_format(3);
inline constexpr Format kUint2 = uint_format(2);
inline constexpr Format kInt1 = codebook_format(Codebook::kSign, 1);
inline constexpr Format kNf4 = codebook_format(Codebook::kNf4, 4);
inline constexpr Format kMxInt8 = int_format(8, 6);  ///< 1 sign, 1 integer and 6 fraction bits (OCP MXINT8)

/// Codebook values. NF4: the 16 quantiles of a normal distribution, scaled to [-1, 1] (QLoRA, appendix E).
inline constexpr std::array<float, 2> kSignValues{-1.0f, 1.0f};
inline constexpr std::array<float, 16> kNf4Values{-1.0f,
                                                  -0.6961928009986877f,
                                                  -0.5250730514526367f,
                                                  -0.39491748809814453f,
                                                  -0.28444138169288635f,
                                                  -0.18477343022823334f,
                                                  -0.09105003625154495f,
                                                  0.0f,
                                                  0.07958029955625534f,
                                                  0.16093020141124725f,
                                                  0.24611230194568634f,
                                                  0.33791524171829224f,
                                                  0.44070982933044434f,
                                                  0.5626170039176941f,
                                                  0.7229568362236023f,
                                                  1.0f};

/// The value of a codebook's code.
NARROW_HOST_DEVICE constexpr float codebook_value(Codebook codebook, std::uint32_t code) {
  constexpr float kSign[2] = {kSignValues[0], kSignValues[1]};
  constexpr float kNf4Table[16] = {kNf4Values[0],  kNf4Values[1],  kNf4Values[2],  kNf4Values[3], kNf4Values[4],  kNf4Values[5],
                                   kNf4Values[6],  kNf4Values[7],  kNf4Values[8],  kNf4Values[9], kNf4Values[10], kNf4Values[11],
                                   kNf4Values[12], kNf4Values[13], kNf4Values[14], kNf4Values[15]};
  return codebook == Codebook::kNf4 ? kNf4Table[code & 15u] : kSign[code & 1u];
}

/// The named formats, in the order of `narrow formats`. Also a template argument for GPU kernels, which
/// cannot take a class-type one: kernels call format_of(id).
enum class FormatId : std::uint8_t {
  kFp32,
  kFp16,
  kBf16,
  kFp8E5m2,
  kFp8E4m3,
  kFp6E3m2,
  kFp6E2m3,
  kFp5E3m1,
  kFp5E2m2,
  kFp4E2m1,
  kFp4E3m0,
  kFp3E2m0,
  kE8m0,
  kInt8,
  kInt4,
  kInt3,
  kInt2,
  kUint8,
  kUint4,
  kUint3,
  kUint2,
  kInt1,
  kNf4,
};

struct NamedFormat {  ///< a format and its short name
  std::string_view name;
  Format format;
};

inline constexpr std::array<NamedFormat, 23> kNamedFormats{{
    ///< in the order of FormatId
    {"fp32", kFp32},        {"fp16", kFp16},        {"bf16", kBf16},        {"fp8_e5m2", kFp8E5m2}, {"fp8_e4m3", kFp8E4m3},
    {"fp6_e3m2", kFp6E3m2}, {"fp6_e2m3", kFp6E2m3}, {"fp5_e3m1", kFp5E3m1}, {"fp5_e2m2", kFp5E2m2}, {"fp4_e2m1", kFp4E2m1},
    {"fp4_e3m0", kFp4E3m0}, {"fp3_e2m0", kFp3E2m0}, {"e8m0", kE8m0},        {"int8", kInt8},        {"int4", kInt4},
    {"int3", kInt3},        {"int2", kInt2},        {"uint8", kUint8},      {"uint4", kUint4},      {"uint3", kUint3},
    {"uint2", kUint2},      {"int1", kInt1},        {"nf4", kNf4},
}};

NARROW_HOST_DEVICE constexpr Format format_of(FormatId id) {
  return kNamedFormats[static_cast<std::size_t>(id)].format;
}  ///< the format that an id stands for

/// The name of a format: one of the table above, or fpN_eEmM.
std::string name_of(const Format& format);

/// The format of a name. Any fpN_eEmM with 1 <= E <= 8, 0 <= M <= 10, N = 1+E+M <= 16 is one.
/// Throws InvalidArgument with the allowed names.
Format parse_format(std::string_view name);

// ---- definitions ----

NARROW_HOST_DEVICE constexpr std::uint32_t Format::max_code() const {
  switch (kind) {
    case FormatKind::kInteger: return (1u << mantissa_bits) - 1u;
    case FormatKind::kCodebook: return code_count() - 1u;
    case FormatKind::kExponent: return 0xFEu;
    case FormatKind::kFloat: break;
  }
  const std::uint32_t all_ones = (1u << (exponent_bits + mantissa_bits)) - 1u;
  if (specials == Specials::kIeee || exponent_bits == 8) return all_ones - (1u << mantissa_bits);
  return specials == Specials::kNanOnly ? all_ones - 1u : all_ones;
}

NARROW_HOST_DEVICE constexpr double Format::largest() const {
  switch (kind) {
    case FormatKind::kInteger: return static_cast<double>(max_code()) * power_of_two(-fraction_bits);
    case FormatKind::kCodebook: return codebook_value(codebook, max_code());
    case FormatKind::kExponent: return power_of_two(127);
    case FormatKind::kFloat: break;
  }
  const std::uint32_t code = max_code();
  const int exponent = static_cast<int>(code >> mantissa_bits);
  const double fraction = static_cast<double>(code & ((1u << mantissa_bits) - 1u)) * power_of_two(-mantissa_bits);
  return exponent == 0 ? fraction * power_of_two(1 - bias) : (1.0 + fraction) * power_of_two(exponent - bias);
}

NARROW_HOST_DEVICE constexpr double Format::smallest_normal() const {
  switch (kind) {
    case FormatKind::kInteger: return power_of_two(-fraction_bits);
    case FormatKind::kExponent: return power_of_two(-127);
    case FormatKind::kCodebook:
      for (std::uint32_t code = 0; code < code_count(); ++code)
        if (codebook_value(codebook, code) > 0.0f) return codebook_value(codebook, code);
      return 0.0;
    case FormatKind::kFloat: break;
  }
  return power_of_two(1 - bias);
}

NARROW_HOST_DEVICE constexpr double Format::smallest_positive() const {
  return kind == FormatKind::kFloat ? power_of_two(1 - bias - mantissa_bits) : smallest_normal();
}

static_assert(kFp8E4m3.largest() == 448.0);    // (1 + 6/8) * 2^(15 - 7)
static_assert(kFp8E5m2.largest() == 57344.0);  // (1 + 3/4) * 2^(30 - 15)
static_assert(kFp6E3m2.largest() == 28.0);     // (1 + 3/4) * 2^(7 - 3)
static_assert(kFp4E2m1.largest() == 6.0);      // (1 + 1/2) * 2^(3 - 1)
static_assert(kFp3E2m0.largest() == 4.0);      // 2^(3 - 1)
static_assert(kMxInt8.largest() == 127.0 / 64.0);

}  // namespace narrow
