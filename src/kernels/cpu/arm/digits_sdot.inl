// Digits of one row of fp32 (digit_row.inl) for AArch64's SDOT, whose bytes are signed. Included in a leaf's namespace after
// digit_codes.inl.
//   2 to 4 bits: per 32 codes of 4 bits 9 operations, 11 where they are looked up, where decoding takes 33 and 48
//   int8:        per 16 codes 4 operations, where decoding takes 20

constexpr int kLargestByte = 254;  // twice the largest value of a code in units

using DigitTable = int8x16_t;  // of the values of codes in units
inline DigitTable load_digit_table(const cpu::FloatTask& task) {
  return vreinterpretq_s8_u8(vsubq_u8(vld1q_u8(task.bytes), vdupq_n_u8(static_cast<std::uint8_t>(task.byte_offset))));
}

/// base + the value of sums of three digits.
[[gnu::always_inline]] inline F add_digits(const cpu::DigitGroup& group, const I (&sums)[3], const F& base) {
  const I high = four<I>([&](int i) { return vaddq_u32(vshlq_n_u32(sums[0].v[i], 8), sums[1].v[i]); });
  return fma(to_float(sums[2]), broadcast(group.unit + 1), fma(to_float(high), broadcast(group.unit), base));
}

/// base + the value of words [kFirst, kFirst + kCount) of an entry against 16 outputs.
template <int kBits, DigitCodes kCodes, int kFirst, int kCount>
[[gnu::always_inline]] inline F add_words(const cpu::DigitGroup& group, const std::int32_t* start, const DigitTable& table, const I& zeros,
                                          const std::byte* codes, const F& base) {
  I sums[3];
  for (int d = 0; d < 3; ++d) {
    if constexpr (kCodes == DigitCodes::kTable) sums[d] = set_lanes(0);  // values have their signs
    if constexpr (kCodes == DigitCodes::kOffset) sums[d] = set_lanes(static_cast<std::uint32_t>(start[d]));
    if constexpr (kCodes == DigitCodes::kZeros) sums[d] = minus_product(set_lanes(0), zeros, -start[d]);
  }
  unroll<kFirst, kFirst + kCount>([&](auto word) __attribute__((always_inline)) {
    constexpr int kWord = decltype(word)::value;
    I bytes = code_word<kBits, kWord>(codes);
    if constexpr (kCodes == DigitCodes::kTable)
      bytes = four<I>([&](int i) { return vreinterpretq_u32_s8(vqtbl1q_s8(table, vreinterpretq_u8_u32(bytes.v[i]))); });
    for (int d = 0; d < 3; ++d) sums[d] = dot(sums[d], bytes, dot_activation(group.digit[kWord][d]));
  });
  return add_digits(group, sums, base);
}

struct ByteDigits {
  static constexpr int kWhole = 23;
  static void write(const cpu::FloatTask& task, const WholeNumbers<kWhole>& from, cpu::DigitGroup& to) {
    write_digits<8, false>(task, from, to);
  }

  static constexpr int kCodeBits = 8;
  static constexpr bool kHalves = false, kHasZeros = false;
  using Entry = cpu::DigitGroup;
  const Entry* entries;

  template <int>
  [[gnu::always_inline]] F add(const Entry& group, const I&, const std::byte* codes, const F& base) const {
    I sums[3] = {set_lanes(0), set_lanes(0), set_lanes(0)};
    for (int word = 0; word < 8; ++word) {
      const DotWeight w = dot_weight(load_lanes(codes + word * kVectorBytes));
      for (int d = 0; d < 3; ++d) sums[d] = dot(sums[d], w, dot_activation(group.digit[word][d]));
    }
    return add_digits(group, sums, base);
  }
};
