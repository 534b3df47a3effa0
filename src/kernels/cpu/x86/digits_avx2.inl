// Digits of one row of fp32 (digit_row.inl) for AVX2. Included in a leaf's namespace after digit_codes.inl.
//   2 to 4 bits: vpmaddubsw adds two products of a code's byte, at most 31, and a digit in 16 bits; four such sums fit, and then meet the
//                sums in 32 bits: 8 to 9 operations per 32 codes, where decoding takes 18 to 24
//   int8:        two digits of 15 bits (cpu::WordDigitGroup) and vpmaddwd: 10 operations, where decoding takes 20

constexpr int kLargestByte = 31;  // of codes: four pairs of products fit 16 bits

using DigitTable = __m256i;  // of the values of codes in units, plus byte_offset
inline DigitTable load_digit_table(const cpu::FloatTask& task) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.bytes)));
}

/// base + the value of words [kFirst, kFirst + kCount) of an entry against 16 outputs.
template <int kBits, DigitCodes kCodes, int kFirst, int kCount>
[[gnu::always_inline]] inline F add_words(const cpu::DigitGroup& group, const std::int32_t* start, DigitTable table, I zeros,
                                          const std::byte* codes, F base) {
  const __m256i ones = _mm256_set1_epi16(1);
  I sums[3];
  for (int d = 0; d < 3; ++d) {
    sums[d] = set_lanes(static_cast<std::uint32_t>(start[d]));
    if constexpr (kCodes == DigitCodes::kZeros)
      for (int h = 0; h < 2; ++h) sums[d].v[h] = _mm256_mullo_epi32(sums[d].v[h], zeros.v[h]);
  }
  unroll<0, kCount / 4>([&](auto quarter) __attribute__((always_inline)) {
    __m256i words[3][2];
    unroll<0, 4>([&](auto step) __attribute__((always_inline)) {
      constexpr int kStep = decltype(step)::value, kWord = kFirst + decltype(quarter)::value * 4 + kStep;
      I bytes = code_word<kBits, kWord>(codes);
      if constexpr (kCodes == DigitCodes::kTable)
        for (int h = 0; h < 2; ++h) bytes.v[h] = _mm256_shuffle_epi8(table, bytes.v[h]);
      for (int d = 0; d < 3; ++d) {
        const __m256i digit = broadcast_word(group.digit[kWord][d]);
        for (int h = 0; h < 2; ++h) {
          const __m256i pairs = _mm256_maddubs_epi16(bytes.v[h], digit);
          words[d][h] = kStep == 0 ? pairs : _mm256_add_epi16(words[d][h], pairs);
        }
      }
    });
    for (int d = 0; d < 3; ++d)
      for (int h = 0; h < 2; ++h) sums[d].v[h] = _mm256_add_epi32(sums[d].v[h], _mm256_madd_epi16(words[d][h], ones));
  });
  I high = shift_left<8>(sums[0]);  // two digits fit one fp32
  for (int h = 0; h < 2; ++h) high.v[h] = _mm256_add_epi32(high.v[h], sums[1].v[h]);
  return fma(to_float(sums[2]), broadcast(group.unit + 1), fma(to_float(high), broadcast(group.unit), base));
}

struct ByteDigits {
  static constexpr int kWhole = 29;
  static void write(const cpu::FloatTask&, const WholeNumbers<kWhole>& from, cpu::WordDigitGroup& to) {
    std::int32_t sums[2] = {};
    for (int i = 0; i < 32; ++i) {
      constexpr int kPlace[4] = {0, 2, 1, 3};  // what meets the even bytes of a lane, then the odd ones
      const std::int32_t high = (from.q[i] + (1 << 14)) >> 15, low = from.q[i] - high * (1 << 15);
      to.digit[i / 4][0][kPlace[i % 4]] = static_cast<std::int16_t>(high);
      to.digit[i / 4][1][kPlace[i % 4]] = static_cast<std::int16_t>(low);
      sums[0] += high;
      sums[1] += low;
    }
    for (int d = 0; d < 2; ++d) to.start[d] = -128 * sums[d];
    to.unit[1] = from.unit;
    to.unit[0] = from.unit * 0x1p15f;
    to.next = 0;
  }

  static constexpr int kCodeBits = 8;
  static constexpr bool kHalves = false, kHasZeros = false;
  using Entry = cpu::WordDigitGroup;
  const Entry* entries;

  template <int>
  [[gnu::always_inline]] F add(const Entry& group, I, const std::byte* codes, F base) const {
    I sums[2];
    for (int d = 0; d < 2; ++d) sums[d] = set_lanes(static_cast<std::uint32_t>(group.start[d]));
    for (int v = 0; v < 8; ++v) {
      const DotWeight w = dot_weight(load_lanes(codes + v * kVectorBytes));
      for (int d = 0; d < 2; ++d) sums[d] = dot(sums[d], w, dot_activation(reinterpret_cast<const std::int8_t*>(group.digit[v][d])));
    }
    return fma(to_float(sums[1]), broadcast(group.unit + 1), fma(to_float(sums[0]), broadcast(group.unit), base));
  }
};
