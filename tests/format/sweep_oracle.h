#pragma once
/// What every fp32 input must become, said a second time: from tables of values in fp64 and exact midpoints between them, as
/// runs of equal codes over the fp32 bit patterns. Shares no code with the encoders.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace narrow::sweep {

inline constexpr std::uint32_t kInfinity = 0x7F800000u;

enum class Round { kNearestEven, kTowardZero, kStochastic };

/// From this magnitude (fp32 bits without the sign) to the next run's, inputs have this code. Stochastic runs: inputs x have
/// code, or next where |x| >= low + gap * (random + 1) / 2^32.
struct Run {
  std::uint32_t begin = 0;
  std::uint32_t code = 0;
  std::uint32_t next = 0;
  double low = 0.0, gap = 0.0;
};

/// Runs of the positive and of the negative inputs, by magnitude, up to infinity; codes of +NaN and -NaN.
struct Oracle {
  std::vector<Run> runs[2];
  std::uint32_t nan[2] = {0, 0};
  int bits = 0;
};

/// The bits of the smallest fp32 value that is at least, or above, a positive value.
inline std::uint32_t first_at(double value, bool also_equal) {
  float x = static_cast<float>(value);
  while (static_cast<double>(x) > value || (also_equal && static_cast<double>(x) == value)) x = std::nextafter(x, -1.0f);
  while (static_cast<double>(x) < value || (!also_equal && static_cast<double>(x) == value))
    x = std::nextafter(x, std::numeric_limits<float>::infinity());
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7FFFFFFFu;
}

/// A float format, spelled out. infinity_code, nan_code: 0 where there is none.
struct FloatCase {
  const char* name;
  int exponent_bits, mantissa_bits, bias;
  std::uint32_t max_code, infinity_code, nan_code;
};

inline double value_of(const FloatCase& f, std::uint32_t code) {
  const int exponent = static_cast<int>(code >> f.mantissa_bits);
  const double fraction = std::ldexp(static_cast<double>(code & ((1u << f.mantissa_bits) - 1u)), -f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1.0 + fraction, exponent - f.bias);
}

inline Oracle float_oracle(const FloatCase& f, Round round, bool ieee_overflow) {
  Oracle oracle;
  oracle.bits = 1 + f.exponent_bits + f.mantissa_bits;
  const std::uint32_t sign = 1u << (oracle.bits - 1);
  const std::uint32_t beyond = ieee_overflow && f.nan_code != 0 ? f.max_code + 1u : f.max_code;
  std::vector<Run> runs;
  for (std::uint32_t code = 0; code <= f.max_code + 1u; ++code) {
    // The code after the largest stands for what rounds beyond it.
    const std::uint32_t shown = code <= f.max_code ? code : (round == Round::kTowardZero ? f.max_code : beyond);
    Run run{0, shown, 0, 0.0, 0.0};
    const double value = value_of(f, code), below = code > 0 ? value_of(f, code - 1u) : 0.0;
    if (code > 0) run.begin = round == Round::kNearestEven ? first_at((below + value) / 2.0, code % 2 == 0) : first_at(value, true);
    if (round == Round::kStochastic && code <= f.max_code) {
      run.low = value;
      run.gap = value_of(f, code + 1u) - value;
      run.next = code + 1u <= f.max_code ? code + 1u : beyond;
    } else {
      run.next = shown;
    }
    if (run.begin < kInfinity) runs.push_back(run);
  }
  runs.push_back({kInfinity, beyond, beyond, 0.0, 0.0});
  oracle.runs[0] = runs;
  for (Run& run : runs) run.code |= sign, run.next |= sign;
  oracle.runs[1] = runs;
  oracle.nan[0] = f.nan_code;
  oracle.nan[1] = f.nan_code == 0 ? 0u : f.nan_code | sign;
  return oracle;
}

/// Codes of ascending values, nearest, a tie to the even one of `tie_rank`; NaN becomes nan.
inline Oracle table_oracle(const std::vector<double>& values, const std::vector<std::uint32_t>& codes, const std::vector<int>& tie_rank,
                           int bits, std::uint32_t nan) {
  Oracle oracle;
  oracle.bits = bits;
  oracle.nan[0] = oracle.nan[1] = nan;
  const auto middle = [&](std::size_t i) { return (values[i] + values[i + 1]) / 2.0; };
  std::size_t zero = 0;
  while (zero + 1 < values.size() && (middle(zero) < 0.0 || (middle(zero) == 0.0 && tie_rank[zero + 1] % 2 == 0))) ++zero;
  oracle.runs[0].push_back({0, codes[zero], codes[zero], 0.0, 0.0});
  oracle.runs[1].push_back({0, codes[zero], codes[zero], 0.0, 0.0});
  for (std::size_t i = zero; i + 1 < values.size(); ++i)
    oracle.runs[0].push_back({first_at(middle(i), tie_rank[i + 1] % 2 == 0), codes[i + 1], codes[i + 1], 0.0, 0.0});
  for (std::size_t i = zero; i > 0; --i)
    oracle.runs[1].push_back({first_at(-middle(i - 1), tie_rank[i - 1] % 2 == 0), codes[i - 1], codes[i - 1], 0.0, 0.0});
  return oracle;
}

inline Oracle integer_oracle(int bits, int high, int fraction_bits = 0) {
  std::vector<double> values;
  std::vector<std::uint32_t> codes;
  std::vector<int> ranks;
  for (int k = -high; k <= high; ++k) {
    values.push_back(std::ldexp(static_cast<double>(k), -fraction_bits));
    codes.push_back(static_cast<std::uint32_t>(k) & ((1u << bits) - 1u));
    ranks.push_back(k);
  }
  return table_oracle(values, codes, ranks, bits, 0);
}

}  // namespace narrow::sweep
