// The shortest way from quotients to codes of at most 8 bits, four vectors at a time: finite quotients that do not round beyond the largest
// value, to nearest. Included by a leaf inside its own namespace, after lowest_bytes and highest_bytes.

constexpr int kRun = 4 * kLanes;  // values that become one vector

/// Codes of whole steps: the low bits of the quotient + 1.5 * 2^23 steps.
struct IntegerRun {
  float magic;
  std::uint8_t mask;
  explicit IntegerRun(const ElementPlan& element) : magic(12582912.0f / element.unit), mask(static_cast<std::uint8_t>(element.mask)) {}

  [[gnu::always_inline]] VBytes operator()(const VF (&)[4], const VF (&quotient)[4]) const {
    VU sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = as_bits(quotient[i] + magic);
    return lowest_bytes(sum[0], sum[1], sum[2], sum[3]) & mask;
  }
};

/// With 2^e the binade of |q|, or the lowest one if that is higher, the sum 2^(e + 23 - M) + |q| rounds q to the spacing 2^(e - M) of the
/// format: its fp32 bits are E << 23 | n, where n counts spacings and E is the field of e + 23 - M. The code is n + ((E - E0) << M).
struct FloatRun {
  float lowest;  ///< the lowest binade
  float up;      ///< 2^(23 - M)
  SumCodes codes;
  explicit FloatRun(const ElementPlan& element)
      : lowest(element.format.lowest), up(float_of(static_cast<std::uint32_t>(127 + element.format.shift) << 23)), codes(element) {}

  [[gnu::always_inline]] VBytes operator()(const VF (&value)[4], const VF (&quotient)[4]) const {
    VU sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = sum_with_binade(quotient[i], lowest, up);
    return codes(value, sum);
  }
};

/// 1 / s = high + low + an error below 2^-48 / s: the remainder 1 - s * high is exact, for normal high.
struct Reciprocal {
  VF high, low;
};
inline Reciprocal reciprocal_of(VF s) {
  const VF high = 1.0f / s;
  return {high, multiply_add(-s, high, splat(1.0f)) / s};
}
