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
  float lowest;            ///< the lowest binade
  float up;                ///< 2^(23 - M)
  int shift;               ///< 23 - M
  std::uint8_t base;       ///< E0 << M, as far as it is in a byte
  std::uint8_t magnitude;  ///< 2^(bits - 1) - 1
  int sign_shift;          ///< 8 - bits
  explicit FloatRun(const ElementPlan& element)
      : lowest(element.format.lowest), up(float_of(static_cast<std::uint32_t>(127 + element.format.shift) << 23)), shift(element.format.shift),
        base(static_cast<std::uint8_t>((element.format.lowest_field + element.format.shift) << element.format.mantissa_bits)),
        magnitude(static_cast<std::uint8_t>(element.format.magnitude_mask)), sign_shift(8 - element.bits) {}

  [[gnu::always_inline]] VBytes operator()(const VF (&value)[4], const VF (&quotient)[4]) const {
    VU code[4];
    for (int i = 0; i < 4; ++i) {
      const VU sum = sum_with_binade(quotient[i], lowest, up);
      code[i] = sum + (sum >> shift);  // a sign stays above the lowest byte
    }
    const VBytes magnitudes = (lowest_bytes(code[0], code[1], code[2], code[3]) - base) & magnitude;
    const VBytes signs = highest_bytes(value[0], value[1], value[2], value[3]) & std::uint8_t{0x80};
    return magnitudes | (VBytes)((VL)signs >> sign_shift);
  }
};
