// What the digits of one row (digit_row.inl) are, and the codes that they meet, as bytes. Included in a leaf's namespace after
// matmul_gemv.inl.

/// The k (0..31) of byte `byte` of word `word`, in the order in which code_word has them.
constexpr int digit_k(int bits, int word, int byte) {
  if (bits == 4 || bits == 8) return 4 * word + byte;
  const int half = byte / 2 * 16, odd = byte % 2, steps = 8 / bits;
  return half + steps * (word / steps * 2 + odd) + word % steps;
}

/// How codes become numbers: by a table of bytes, as they are less a common offset, or as they are less each output's zero point.
enum class DigitCodes { kTable, kOffset, kZeros };

/// One word of a lane's codes as bytes, for 16 outputs at `codes`, vectors kVectorBytes apart.
template <int kBits, int kWord>
[[gnu::always_inline]] inline I code_word(const std::byte* codes) {
  const auto lanes = [&](int v) __attribute__((always_inline)) { return load_lanes(codes + v * kVectorBytes); };
  if constexpr (kBits == 3) {
    const I mask = set_lanes(0x07070707u);
    if constexpr (kWord < 6) return bit_and(shift_right<kWord % 2 * 3>(lanes(kWord / 2)), mask);
    SpareCodes<3> spare;
    unroll<0, 3>([&](auto vector)
                     __attribute__((always_inline)) { spare.template take<decltype(vector)::value>(lanes(decltype(vector)::value)); });
    return bit_and(shift_right<kWord % 2 * 3>(spare.first), mask);
  } else {
    constexpr int kSteps = 8 / kBits;
    return bit_and(shift_right<kWord % kSteps * kBits>(lanes(kWord / kSteps)), set_lanes(kBits == 4 ? 0x0F0F0F0Fu : 0x03030303u));
  }
}

/// 32 activations as whole numbers below 2^kWhole in a common unit, round by round; what is left of them stays in `left`.
template <int kWhole>
struct WholeNumbers {
  alignas(64) float left[32];
  alignas(64) std::int32_t q[32];
  float unit = 1.0f;

  /// False where their range does not allow it.
  bool next() {
    std::uint32_t largest = 0;
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, left[i]) & 0x7FFFFFFFu;
      largest = largest < magnitude ? magnitude : largest;
    }
    // largest 2^(126 + kWhole - field) is at most 2^kWhole - 2^(kWhole - 7), room for the carries of digits
    const std::uint32_t field = (largest + 0x20000u) >> 23;
    if (largest != 0 && (field < 40 || field > 214)) return false;
    const std::uint32_t shift = largest == 0 ? 0u : 126u + kWhole - field;
    const float scale = __builtin_bit_cast(float, (127u + shift) << 23);
    unit = __builtin_bit_cast(float, (127u - shift) << 23);
    for (int i = 0; i < 32; i += kPart) {
      const F values = load(left + i);
      const I whole = to_whole(mul(values, set(scale)));
      store_lanes(q + i, whole);
      store(left + i, fma(to_float(whole), set(-unit), values));
    }
    return true;
  }
  /// Whether no more than `tolerance` is left of any of x.
  bool is_enough(const float* x, float tolerance) const {
    int wrong = 0;
    for (int i = 0; i < 32; ++i) wrong |= __builtin_fabsf(left[i]) <= __builtin_fabsf(x[i]) * tolerance ? 0 : 1;
    return wrong == 0;
  }
};

/// What the entries of one kind hold of a round.
template <int kBits, bool kSmall, typename Numbers>
void write_digits(const cpu::FloatTask& task, const Numbers& from, cpu::DigitGroup& to) {
  struct Places {
    std::uint8_t k[32];
  };
  static constexpr Places kPlaces = [] {
    Places places{};
    for (int i = 0; i < 32; ++i) places.k[i] = static_cast<std::uint8_t>(digit_k(kBits, i / 4, i % 4));
    return places;
  }();
  std::int32_t sums[2][3] = {};
  std::int8_t digits[32][3];  // the bytes of q + 0x808080 are the digits + 128: carries go where they belong
  for (int k = 0; k < 32; ++k) {
    const std::uint32_t bytes = (static_cast<std::uint32_t>(from.q[k]) + 0x808080u) ^ 0x808080u;
    for (int d = 0; d < 3; ++d) {
      digits[k][d] = static_cast<std::int8_t>(bytes >> (16 - 8 * d));
      sums[k / 16][d] += digits[k][d];
    }
  }
  for (int word = 0; word < 8; ++word)
    for (int byte = 0; byte < 4; ++byte)
      for (int d = 0; d < 3; ++d) to.digit[word][d][byte] = digits[kPlaces.k[word * 4 + byte]][d];
  for (int d = 0; d < 3; ++d) {
    to.start[0][d] = -task.byte_offset * (kSmall ? sums[0][d] : sums[0][d] + sums[1][d]);
    to.start[1][d] = -task.byte_offset * sums[1][d];
  }
  to.unit[1] = from.unit * task.byte_unit;
  to.unit[0] = to.unit[1] * 256.0f;
  to.next = 0;
}
