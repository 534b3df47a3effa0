#pragma once
/// Everything the fast quantize bodies need of a problem, as plain numbers. Computed in plan.cc, which is compiled for
/// any CPU, so that the leaves call none of the shared inline functions of the format layer.

#include <cstdint>

#include "kernels/quantize.h"

namespace narrow::cpu {

/// A float format of at most 16 bits. Codes below leave out the sign; M is the number of mantissa bits.
struct FloatPlan {
  // Encoding.
  int shift = 0;  ///< 23 - M
  int mantissa_bits = 0;
  int lowest_field = 0;               ///< fp32 exponent field of the first binade, that of the subnormals
  std::uint32_t offset = 0;           ///< fp32 bits - offset = code << shift, of normal values
  std::uint32_t round_offset = 0;     ///< offset less all that rounds down: 2^(shift-1) - 1
  std::uint32_t parity = 0;           ///< 1 where the parities of a code and of its fp32 bits >> shift differ
  std::uint32_t subnormal_magic = 0;  ///< fp32 bits of 2^(lowest - M + 23): adding it rounds to the subnormals' spacing
  std::int32_t hidden = 0;            ///< 2^M, the code of the smallest normal value
  std::int32_t limit = 0;             ///< codes that round beyond the largest become this
  std::int32_t infinite_code = 0;     ///< of an infinity
  std::uint32_t nan_code = 0;         ///< of a NaN: 0 where the format has none
  std::uint32_t sign_bit = 0;         ///< 2^(bits - 1)
  std::uint32_t nan_sign = 0;         ///< sign_bit where a NaN keeps its sign
  int sign_shift = 0;                 ///< 32 - bits
  // Decoding.
  std::uint32_t magnitude_mask = 0;  ///< 2^(bits - 1) - 1
  float lowest = 0.0f;               ///< the smallest normal value
  std::int32_t special_from = 0;     ///< from this code on infinities ...
  std::int32_t nan_from = 0;         ///< ... and from this one on NaN
};

/// How scales are stored.
enum class ScaleStorage : std::uint8_t { kFp32, kFloat, kExponent };

struct ScalePlan {
  ScaleStorage storage = ScaleStorage::kFp32;
  int bytes = 4;
  FloatPlan format;  ///< of kFloat
  ScaleRule rule = ScaleRule::kLargest;
  bool present = false;
  bool asymmetric = false;
  bool has_outer = false;
  float outer = 1.0f;
  float largest = 1.0f;        ///< of the element; the highest code of an asymmetric one
  int largest_exponent = 0;    ///< floor(log2 largest)
  int lowest_exponent = 0;     ///< shared exponents are at least this ...
  int zero_exponent_code = 0;  ///< ... except of an all-zero block
};

enum class ElementKind : std::uint8_t { kFloat, kInteger, kCodebook };

/// Thresholds and tables of the codebooks and of every format of at most 4 bits.
inline constexpr int kTableSize = 16;

struct ElementPlan {
  ElementKind kind = ElementKind::kFloat;
  int bits = 0;
  FloatPlan format;               ///< of kFloat
  bool is_even_grid = false;      ///< of kFloat: all values are multiples of the smallest
  bool is_half = false;           ///< of kFloat: at most 8 bits, and fp16 has every value times a power of two
  float unit = 1.0f;              ///< integers: codes per 1.0, a power of two
  float low = 0.0f, high = 0.0f;  ///< integers: the range of codes, before the zero point
  std::uint32_t mask = 0;         ///< 2^bits - 1
  int thresholds = 0;             ///< codebooks: code = number of thresholds that are <= x
  float threshold[kTableSize] = {};
  float value[kTableSize] = {};  ///< codebooks, and formats of at most 4 bits: value[code]
  bool has_table = false;
};

/// How the quotient x / s is had.
enum class Quotient : std::uint8_t {
  kDivide,
  kMultiply,    ///< by 1 / s, where s is a power of two: the same value
  kReciprocal,  ///< x * high + x * low with 1 / s = high + low: the same code (tests/format/division_test.cc), and -0 becomes +0
};

/// Scales for which no part of kReciprocal under- or overflows; any other is divided by.
inline constexpr float kLowestReciprocal = 0x1p-60f, kHighestReciprocal = 0x1p60f;

struct QuantizePlan {
  ElementPlan element;
  ScalePlan scale;
  Quotient quotient = Quotient::kDivide;
  bool stream = false;  ///< codes will not fit into caches: write around them
};

struct DequantizePlan {
  ElementPlan element;
  ScalePlan scale;
  FloatPlan output;  ///< of 16-bit outputs
  bool stream = false;
};

QuantizePlan plan_of(const QuantizeProblem& problem);
DequantizePlan plan_of(const DequantizeProblem& problem);

}  // namespace narrow::cpu
