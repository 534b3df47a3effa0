// Codes of at most 8 bits from what sum_with_binade gives: its fp32 bits are E << 23 | n. Included by a leaf inside its own namespace,
// after lowest_bytes and highest_bytes.

struct SumCodes {
  int shift;               ///< 23 - M
  std::uint8_t base;       ///< E0 << M, as far as it is in a byte
  std::uint8_t magnitude;  ///< 2^(bits - 1) - 1
  int sign_shift;          ///< 8 - bits
  explicit SumCodes(const ElementPlan& element)
      : shift(element.format.shift),
        base(static_cast<std::uint8_t>((element.format.lowest_field + element.format.shift) << element.format.mantissa_bits)),
        magnitude(static_cast<std::uint8_t>(element.format.magnitude_mask)),
        sign_shift(8 - element.bits) {}

  [[gnu::always_inline]] VBytes operator()(const VF (&value)[4], const VU (&sum)[4]) const {
    const auto code = [&](int i) __attribute__((always_inline)) { return sum[i] + (sum[i] >> shift); };
    const VBytes magnitudes = (lowest_bytes(code(0), code(1), code(2), code(3)) - base) & magnitude;
    const VBytes signs = highest_bytes(value[0], value[1], value[2], value[3]) & std::uint8_t{0x80};
    return magnitudes | (VBytes)((VL)signs >> sign_shift);
  }
};
