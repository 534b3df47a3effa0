// One row of fp32 against codes of 2 to 4 bits, or int8, by integer dot products, as x86/digits.inl, for AVX2: no activation is rounded to
// 8 bits. Included in a leaf's namespace after matmul_gemv.inl.
//   2 to 4 bits: three digits of a byte (cpu::DigitGroup). vpmaddubsw adds two products of a code's byte, at most 31, and a digit in 16
//                bits; four such sums fit, and then meet the sums in 32 bits: 8 to 9 operations per 32 codes, where decoding takes 18 to 24
//   int8:        two digits of 15 bits (cpu::WordDigitGroup) and vpmaddwd: 10 operations, where decoding takes 20
// Error: that of the digits, K 2^-25 sum |x||w|, and a rounding per group and block. Bound: the memory that holds the weight.

/// The k (0..31) of byte `byte` of word `word`, in the order in which words_of_group meets codes.
constexpr int digit_k(int bits, int word, int byte) {
  if (bits == 4) return 4 * word + byte;
  const int half = byte / 2 * 16, odd = byte % 2, steps = 8 / bits;
  return half + steps * (word / steps * 2 + odd) + word % steps;
}

// ---- activations to digits ----

/// 32 activations as whole numbers below 2^kWhole in a common unit, round by round; what is left of them stays in `left`.
template <int kWhole>
struct WholeNumbers {
  alignas(32) float left[32];
  alignas(32) std::int32_t q[32];
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
    for (int i = 0; i < 32; i += 8) {
      const __m256 values = _mm256_load_ps(left + i);
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(scale)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(q + i), whole);
      _mm256_store_ps(left + i, _mm256_fnmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(unit), values));
    }
    return true;
  }
  /// Whether no more than `tolerance` is left of any of x.
  bool is_enough(const float* x, float tolerance) const {
    int wrong = 0;
    for (int i = 0; i < 32; i += 8) {
      const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
      const __m256 rest = _mm256_and_ps(_mm256_load_ps(left + i), magnitude), whole = _mm256_and_ps(_mm256_loadu_ps(x + i), magnitude);
      wrong |= _mm256_movemask_ps(_mm256_cmp_ps(rest, _mm256_mul_ps(whole, _mm256_set1_ps(tolerance)), _CMP_NLE_UQ));
    }
    return wrong == 0;
  }
};

/// What the entries of one kind hold of a round.
template <int kBits, bool kSmall>
void write_digits(const cpu::FloatTask& task, const WholeNumbers<23>& from, cpu::DigitGroup& to) {
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
inline void write_digits(const WholeNumbers<29>& from, cpu::WordDigitGroup& to) {
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

/// All groups, entry by entry; false where kDigitEntries do not hold one.
template <int kWhole, typename Entry, typename Write>
bool pack_digit_groups(const cpu::FloatTask& task, std::int64_t k, const float* x, Entry* entries, const Write& write) {
  auto spare = static_cast<std::int32_t>(task.groups);
  const float tolerance = static_cast<float>(k) * 0x1p-25f;
  for (std::int64_t group = 0; group < task.groups; ++group) {
    WholeNumbers<kWhole> numbers;
    __builtin_memcpy(numbers.left, x + group * 32, sizeof numbers.left);
    std::int64_t entry = group;
    for (int round = 0;; ++round) {
      if (!numbers.next()) return false;
      write(numbers, entries[entry]);
      if (numbers.is_enough(x + group * 32, tolerance)) break;
      if (round + 1 == cpu::kDigitEntries) return false;
      entry = entries[entry].next = spare++;
    }
  }
  return true;
}

// ---- codes of 2 to 4 bits ----

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

/// How codes become numbers: by a table of bytes, as they are less a common offset, or as they are less each output's zero point.
enum class DigitCodes { kTable, kOffset, kZeros };

/// base + the value of words [kFirst, kFirst + kCount) of an entry against 16 outputs.
template <int kBits, DigitCodes kCodes, int kFirst, int kCount>
[[gnu::always_inline]] inline F add_words(const cpu::DigitGroup& group, const std::int32_t* start, __m256i table, I zeros,
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

/// A group, or half of one, of 16 outputs: what digit_rows adds up.
template <int kBits, bool kSmall, DigitCodes kCodes>
struct CodeDigits {
  static constexpr int kCodeBits = kBits;
  static constexpr bool kHalves = kSmall, kHasZeros = kCodes == DigitCodes::kZeros;
  using Entry = cpu::DigitGroup;
  const Entry* entries;
  __m256i table;

  template <int kHalf>
  [[gnu::always_inline]] F add(const Entry& group, I zeros, const std::byte* codes, F base) const {
    if constexpr (kSmall)
      return add_words<kBits, kCodes, 4 * kHalf, 4>(group, group.start[kHalf], table, zeros, codes, base);
    else
      return add_words<kBits, kCodes, 0, 8>(group, group.start[0], table, zeros, codes, base);
  }
};

// ---- int8 ----

struct ByteDigits {
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

// ---- a panel ----

/// sums[64] of the only row. Lines are fetched kAhead bytes further, one for every line that is read.
template <typename Source>
void digit_row(const cpu::FloatTask& task, const FloatPanel& panel, const Source& source, float* sums) {
  constexpr std::int64_t kGroupBytes = Source::kCodeBits * kVectorBytes;
  F total[kParts], block[kParts];
  for (int p = 0; p < kParts; ++p) total[p] = block[p] = set(0.0f);
  const std::int64_t groups_per_block = task.halves_per_block / 2;
  std::int64_t left = groups_per_block, scale = panel.first_scale;
  const auto end_block = [&]() {
    for (int p = 0; p < kParts; ++p) {
      total[p] = fma(block[p], load_own_scales(task.scales, panel.scales, scale + p * kPart), total[p]);
      block[p] = set(0.0f);
    }
    scale += kLanes;
  };
  const std::byte* codes = panel.codes;
  for (std::int64_t group = 0; group < task.groups; ++group, codes += kGroupBytes) {
    for (int p = 0; p < kParts; ++p) {
      const std::byte* part = codes + p * kPart * 4;
      for (int v = 0; v < Source::kCodeBits; ++v) __builtin_prefetch(part + v * kVectorBytes + kPrefetchBytes, 0, 2);
      std::int64_t index = group;
      F halves[2] = {Source::kHalves ? set(0.0f) : block[p], set(0.0f)};
      I zeros{};
      if constexpr (Source::kHasZeros) zeros = widen_bytes(panel.zero_points + scale + p * kPart);
      do {
        const typename Source::Entry& entry = source.entries[index];
        halves[0] = source.template add<0>(entry, zeros, part, halves[0]);
        if constexpr (Source::kHalves) halves[1] = source.template add<1>(entry, zeros, part, halves[1]);
        index = entry.next;
      } while (index != 0);
      if constexpr (Source::kHalves) {
        total[p] = fma(halves[0], load_own_scales(task.scales, panel.scales, scale + p * kPart), total[p]);
        total[p] = fma(halves[1], load_own_scales(task.scales, panel.scales, scale + kLanes + p * kPart), total[p]);
      } else {
        block[p] = halves[0];
      }
    }
    if constexpr (Source::kHalves) {
      scale += 2 * kLanes;
    } else if (--left == 0) {
      end_block();
      left = groups_per_block;
    }
  }
  if (!Source::kHalves && left != groups_per_block) end_block();
  for (int p = 0; p < kParts; ++p) store(sums + p * kPart, mul(total[p], set(task.scales.factor)));
}

/// The only row, by digits.
template <typename Decoder>
void gemv_by_digits(const Decoder&, const cpu::FloatTask& task, const FloatPanel& panel, const std::byte* packed, float* sums) {
  constexpr int kBits = Decoder::kBits;
  const std::byte* digits = packed + task.digits_offset;
  if constexpr (kBits == 8) {
    return digit_row(task, panel, ByteDigits{reinterpret_cast<const cpu::WordDigitGroup*>(digits)}, sums);
  } else {
    const auto* entries = reinterpret_cast<const cpu::DigitGroup*>(digits);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.bytes)));
    constexpr DigitCodes kCodes = Decoder::kZero ? DigitCodes::kZeros : (Decoder::kLookUp ? DigitCodes::kTable : DigitCodes::kOffset);
    if constexpr (kBits == 4 && !Decoder::kZero)
      if (task.halves_per_block == 1) return digit_row(task, panel, CodeDigits<4, true, kCodes>{entries, table}, sums);
    digit_row(task, panel, CodeDigits<kBits, false, kCodes>{entries, table}, sums);
  }
}

/// As cpu::float_pack, and the digits, where the bytes of codes are small enough.
void digit_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  auto& task = *reinterpret_cast<cpu::FloatTask*>(packed);
  if (task.digits_offset == 0) return cpu::float_pack(problem, m_begin, m_end, packed);
  cpu::float_pack_rows(problem, m_begin, m_end, packed);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  const int bits = problem.w.scheme.element.bits;
  const auto pack = [&](const auto& write) {
    return pack_digit_groups<23>(task, problem.k, x, reinterpret_cast<cpu::DigitGroup*>(packed + task.digits_offset), write);
  };
  if (bits == 8) {
    auto* entries = reinterpret_cast<cpu::WordDigitGroup*>(packed + task.digits_offset);
    task.has_digits = pack_digit_groups<29>(task, problem.k, x, entries,
                                            [](const WholeNumbers<29>& from, cpu::WordDigitGroup& to) { write_digits(from, to); });
  } else if (task.byte_offset <= 15) {  // of -15..15 steps; more would not fit four pairs in 16 bits
    using From = WholeNumbers<23>;
    using To = cpu::DigitGroup;
    if (bits == 2) task.has_digits = pack([&](const From& from, To& to) { write_digits<2, false>(task, from, to); });
    if (bits == 3) task.has_digits = pack([&](const From& from, To& to) { write_digits<3, false>(task, from, to); });
    if (bits == 4 && task.halves_per_block > 1)
      task.has_digits = pack([&](const From& from, To& to) { write_digits<4, false>(task, from, to); });
    if (bits == 4 && task.halves_per_block == 1)
      task.has_digits = pack([&](const From& from, To& to) { write_digits<4, true>(task, from, to); });
  }
  if (!task.has_digits && task.tables_offset != 0) cpu::float_pack_tables(problem, packed);
}
constexpr cpu::MatmulPack kFloatPack = digit_pack;
