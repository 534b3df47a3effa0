// One row of fp32 against codes of 2 to 4 bits, or int8, by integer dot products (VPDPBUSD), without rounding activations to int8: 32 of
// them are whole numbers of 24 bits in a common unit, in three digits of signed bytes (cpu::DigitGroup), and the values of codes are bytes.
// Sums of a group are exact; per 64 values a look-up of bytes (VPERMB; none of int8) and three dot products replace four shifts, look-ups
// and FMAs. Groups whose activations differ by more than a factor of K / 2 take another round for what is left; rows beyond that are
// decoded. Error: K 2^-25 sum |x||w| of the digits, and a rounding per group and block. Included in a leaf's namespace after
// matmul_gemv.inl.

/// The k (0..31) of byte `byte` of word `word`, in the order in which DigitRow meets codes. kSmall: words of each half of a group apart.
constexpr int digit_k(int bits, bool small, int word, int byte) {
  if (small) return 16 * (word / 4) + 8 * (word % 4 / 2) + 2 * byte + word % 2;
  if (bits == 8) return 4 * word + byte;
  const int half = byte / 2 * 16, odd = byte % 2;
  if (bits != 3) return half + word / (8 / bits) * (16 / bits) + 8 / bits * odd + word % (8 / bits);
  if (word == 6) return half + (odd != 0 ? 9 : 4);
  return half + (word == 7 ? 14 + odd : 5 * (word / 2) + 2 * (word % 2) + odd);
}

/// Where the bytes of a DigitGroup's digits come from: 32 lanes of four bytes, the highest digit in the third.
template <int kBits, bool kSmall>
struct DigitPlaces {
  alignas(64) std::uint8_t from[128];
  constexpr DigitPlaces() : from{} {
    for (int i = 0; i < 96; ++i) from[i] = static_cast<std::uint8_t>(4 * digit_k(kBits, kSmall, i / 12, i % 4) + 2 - i / 4 % 3);
  }
};

/// The 32 activations at x, entry by entry; false where kDigitEntries do not hold them. entry: the group's first; spare: the next free.
template <int kBits, bool kSmall>
bool pack_digit_group(const cpu::FloatTask& task, F tolerance, const float* x, cpu::DigitGroup* entries, std::int64_t entry,
                      std::int32_t& spare) {
  static constexpr DigitPlaces<kBits, kSmall> kPlaces;
  const I magnitude = set_lanes(0x7FFFFFFFu), carry = set_lanes(0x00808080u);
  const F x0 = load(x), x1 = load(x + 16);
  F left0 = x0, left1 = x1;
  for (int round = 0;; ++round) {
    const I largest = _mm512_max_epi32(bit_and(_mm512_castps_si512(left0), magnitude), bit_and(_mm512_castps_si512(left1), magnitude));
    const int amax = _mm512_reduce_max_epi32(largest);
    const int field = (amax + 0x20000) >> 23;  // amax 2^(149 - field) is at most 2^23 - 2^16, and three digits go up to 2^23 - 2^15 - 129
    if (amax != 0 && (field < 40 || field > 214)) return false;
    const std::uint32_t shift = amax == 0 ? 0u : static_cast<std::uint32_t>(149 - field);
    const F scale = set(__builtin_bit_cast(float, (127u + shift) << 23)), unit = set(__builtin_bit_cast(float, (127u - shift) << 23));
    const I q0 = _mm512_cvtps_epi32(mul(left0, scale)), q1 = _mm512_cvtps_epi32(mul(left1, scale));
    cpu::DigitGroup& group = entries[entry];
    // The bytes of q + 0x808080 are the digits + 128: carries go where they belong.
    const I bytes0 = _mm512_xor_si512(_mm512_add_epi32(q0, carry), carry), bytes1 = _mm512_xor_si512(_mm512_add_epi32(q1, carry), carry);
    store_lanes(group.digit, _mm512_permutex2var_epi8(bytes0, load_lanes(kPlaces.from), bytes1));
    const __m256i rest = _mm512_castsi512_si256(_mm512_permutex2var_epi8(bytes0, load_lanes(kPlaces.from + 64), bytes1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<std::byte*>(group.digit) + 64), rest);
    std::int32_t sums[32];  // of the four bytes of [word][digit]
    const I ones = _mm512_set1_epi8(1);
    store_lanes(sums, _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, load_lanes(group.digit)));
    store_lanes(sums + 16, _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, _mm512_castsi256_si512(rest)));
    for (int half = 0; half < 2; ++half)
      for (int d = 0; d < 3; ++d) {
        const std::int32_t* words = sums + 12 * half + d;
        group.start[half][d] = -task.byte_offset * (words[0] + words[3] + words[6] + words[9]);
      }
    if constexpr (!kSmall)
      for (int d = 0; d < 3; ++d) group.start[0][d] += group.start[1][d];
    group.unit[1] = unit[0] * task.byte_unit;
    group.unit[0] = group.unit[1] * 256.0f;
    group.next = 0;
    left0 = _mm512_fnmadd_ps(to_float(q0), unit, left0);
    left1 = _mm512_fnmadd_ps(to_float(q1), unit, left1);
    const auto too_large = [&](F left, F whole) {
      return _mm512_cmp_ps_mask(_mm512_abs_ps(left), mul(_mm512_abs_ps(whole), tolerance), _CMP_NLE_UQ);
    };
    if ((too_large(left0, x0) | too_large(left1, x1)) == 0) return true;
    if (round + 1 == cpu::kDigitEntries) return false;
    entry = group.next = spare++;
  }
}

template <int kBits, bool kSmall>
bool pack_digit_groups(const cpu::FloatTask& task, std::int64_t k, const float* x, cpu::DigitGroup* entries) {
  auto spare = static_cast<std::int32_t>(task.groups);
  const F tolerance = set(static_cast<float>(k) * 0x1p-25f);
  for (std::int64_t group = 0; group < task.groups; ++group)
    if (!pack_digit_group<kBits, kSmall>(task, tolerance, x + group * 32, entries, group, spare)) return false;
  return true;
}

/// A source of matmul_gemv.inl. kSmall: the scale changes every 16 k.
template <typename Decoder, bool kSmall>
struct DigitRow {
  static constexpr int kBits = Decoder::kBits, kRows = 1, kDigits = 3;
  static constexpr std::int64_t kAhead = kBits == 8 || kBits == 3 ? kPrefetchBytes / 2 : kPrefetchBytes;
  using Zeros = TableDecoder<4>;  // none
  const cpu::DigitGroup* entries;
  I table;  // of the values of codes in units, plus byte_offset: 64, repeated

  template <int kCount>
  using Sums = I[kDigits][kCount];

  template <int kCount>
  [[gnu::always_inline]] static void start(const std::int32_t* starts, Sums<kCount>& sums) {
    for (int d = 0; d < kDigits; ++d)
      for (int p = 0; p < kCount; ++p) sums[d][p] = _mm512_set1_epi32(starts[d]);
  }

  /// Adds word `word` of the codes, whose low bits are the bytes of `indices`.
  template <int kCount>
  [[gnu::always_inline]] void multiply(const cpu::DigitGroup& group, int word, const I (&indices)[kCount], Sums<kCount>& sums) const {
    I values[kCount];
    for (int p = 0; p < kCount; ++p) values[p] = kBits == 8 ? indices[p] : _mm512_permutexvar_epi8(indices[p], table);
    for (int d = 0; d < kDigits; ++d) {
      const I digit = dot_activation(group.digit[word][d]);
      for (int p = 0; p < kCount; ++p) sums[d][p] = dot(sums[d][p], values[p], digit);
    }
  }

  /// totals += the value of the sums; two digits fit one fp32.
  template <int kCount>
  [[gnu::always_inline]] static void finish(const cpu::DigitGroup& group, const Sums<kCount>& sums, F (&totals)[1][kCount][2], int half) {
    const F high = broadcast(group.unit), low = broadcast(group.unit + 1);
    for (int p = 0; p < kCount; ++p) {
      const I first = _mm512_add_epi32(shift_left<8>(sums[0][p]), sums[1][p]);
      totals[0][p][half] = fma(to_float(sums[2][p]), low, fma(to_float(first), high, totals[0][p][half]));
    }
  }

  template <int kCount, typename Index>
  [[gnu::always_inline]] void take(const cpu::DigitGroup& group, int word, Sums<kCount>& sums, const Index& index) const {
    I indices[kCount];
    for (int p = 0; p < kCount; ++p) indices[p] = index(p);
    multiply<kCount>(group, word, indices, sums);
  }

  /// Halves apart: of two vectors the low words, or the high ones, side by side.
  template <int kCount, int kHalf>
  [[gnu::always_inline]] void add_half(const cpu::DigitGroup& group, const std::byte* codes, F (&totals)[1][kCount][2]) const {
    constexpr std::int64_t kFetch = kHalf == 0 ? kAhead : 0;
    Sums<kCount> sums;
    start<kCount>(group.start[kHalf], sums);
    unroll<0, 2>([&](auto pair) __attribute__((always_inline)) {
      constexpr int v = 2 * decltype(pair)::value;
      I words[kCount];
      for (int p = 0; p < kCount; ++p) {
        const I a = load_part<kFetch>(codes + v * kVectorBytes, p), b = load_part<kFetch>(codes + (v + 1) * kVectorBytes, p);
        const I low = kHalf == 0 ? a : shift_right<16>(a), high = kHalf == 0 ? shift_left<16>(b) : b;
        words[p] = in_register(_mm512_mask_blend_epi16(0xAAAAAAAAu, low, high));
      }
      take<kCount>(group, 4 * kHalf + v, sums, [&](int p) { return words[p]; });
      take<kCount>(group, 4 * kHalf + v + 1, sums, [&](int p) { return shift_right<4>(words[p]); });
    });
    finish<kCount>(group, sums, totals, kHalf);
  }

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t index, const std::byte* codes, const F (&)[kCount][2], F (&totals)[1][kCount][2]) const {
    do {
      asm("" : "+r"(codes));  // decoded anew for a second entry: 32 vectors do not wait in registers
      add_entry<kCount>(entries[index], codes, totals);
      index = entries[index].next;
    } while (index != 0);
  }

  template <int kCount>
  [[gnu::always_inline]] void add_entry(const cpu::DigitGroup& group, const std::byte* codes, F (&totals)[1][kCount][2]) const {
    if constexpr (kSmall) {
      add_half<kCount, 0>(group, codes, totals);
      add_half<kCount, 1>(group, codes, totals);
      return;
    }
    const auto lane = [&](int v, int p) __attribute__((always_inline)) { return load_part<kAhead>(codes + v * kVectorBytes, p); };
    Sums<kCount> sums;
    start<kCount>(group.start[0], sums);
    if constexpr (kBits == 3) {
      unroll<0, 3>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value;
        const I low = _mm512_set1_epi64(0x3330232013100300), high = _mm512_set1_epi64(0x3936292619160906);  // bits 3 j of the four words
        I lanes[kCount];
        for (int p = 0; p < kCount; ++p) lanes[p] = in_register(lane(v, p));
        take<kCount>(group, 2 * v, sums, [&](int p) { return _mm512_multishift_epi64_epi8(low, lanes[p]); });
        take<kCount>(group, 2 * v + 1, sums, [&](int p) { return _mm512_multishift_epi64_epi8(high, lanes[p]); });
      });
      const auto lane_again = [&](int v, int p) __attribute__((always_inline)) { return load_part<0>(codes + v * kVectorBytes, p); };
      const I even = set_lanes(0x00FF00FFu);
      const auto choose = [&](I first, I second) { return _mm512_ternarylogic_epi32(even, first, second, 0xCA); };
      take<kCount>(group, 6, sums, [&](int p) { return choose(shift_right<12>(lane_again(0, p)), shift_right<4>(lane_again(1, p))); });
      take<kCount>(group, 7, sums, [&](int p) {  // code 14, and code 15 whose bits lie apart
        const I a = lane_again(0, p), b = lane_again(1, p), c = lane_again(2, p);
        const I high = and_or(shift_right<6>(b), set_lanes(0x02000200u), bit_and(shift_right<5>(c), set_lanes(0x04000400u)));
        return choose(shift_right<12>(c), and_or(shift_right<7>(a), set_lanes(0x01000100u), high));
      });
    } else {
      unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value, kSteps = 8 / kBits;
        I lanes[kCount];
        for (int p = 0; p < kCount; ++p) lanes[p] = in_register(lane(v, p));
        unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
          constexpr int j = decltype(step)::value;
          take<kCount>(group, v * kSteps + j, sums, [&](int p) { return shift_right<kBits * j>(lanes[p]); });
        });
      });
    }
    finish<kCount>(group, sums, totals, 0);
  }
};

/// The only row, by digits.
template <typename Decoder>
void gemv_by_digits(const Decoder&, const cpu::FloatTask& task, const FloatPanel& panel, const std::byte* packed, float* sums) {
  const auto* entries = reinterpret_cast<const cpu::DigitGroup*>(packed + task.digits_offset);
  if constexpr (Decoder::kBits == 4)
    if (task.halves_per_block == 1) return gemv(task, panel, DigitRow<Decoder, true>{entries, load_lanes(task.bytes)}, sums);
  gemv(task, panel, DigitRow<Decoder, false>{entries, load_lanes(task.bytes)}, sums);
}

/// The tables of cpu::float_pack, one vector each.
template <int kBits>
void pack_sum_tables(const cpu::FloatTask& task, const float* x, float* tables) {
  alignas(64) float columns[4 / kBits][16];  // the value that an index gives to each of its codes
  for (int i = 0; i < 16; ++i)
    for (int code = 0; code < 4 / kBits; ++code) columns[code][i] = task.table[(i >> (kBits * code)) & ((1 << kBits) - 1)];
  for (std::int64_t group = 0; group < task.groups; ++group, x += 32)
    for (int vector = 0; vector < kBits; ++vector)
      for (int nibble = 0; nibble < 8; ++nibble, tables += 16) {
        const float* part = x + nibble / 4 * 16 + vector * (16 / kBits) + nibble % 4 * (4 / kBits);
        const auto term = [&](int code) { return mul(broadcast(part + code), load(columns[code])); };
        store(tables, kBits == 2 ? plus(term(0), term(1)) : plus(plus(term(0), term(1)), plus(term(2), term(3))));
      }
}

/// As cpu::float_pack, and the digits.
void digit_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  cpu::float_pack_rows(problem, m_begin, m_end, packed);
  cpu::FloatTask& task = *reinterpret_cast<cpu::FloatTask*>(packed);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  const int bits = problem.w.scheme.element.bits;
  if (task.digits_offset != 0) {
    auto* entries = reinterpret_cast<cpu::DigitGroup*>(packed + task.digits_offset);
    if (bits == 2) task.has_digits = pack_digit_groups<2, false>(task, problem.k, x, entries);
    if (bits == 8) task.has_digits = pack_digit_groups<8, false>(task, problem.k, x, entries);
    if (bits == 3) task.has_digits = pack_digit_groups<3, false>(task, problem.k, x, entries);
    if (bits == 4 && task.halves_per_block > 1) task.has_digits = pack_digit_groups<4, false>(task, problem.k, x, entries);
    if (bits == 4 && task.halves_per_block == 1) task.has_digits = pack_digit_groups<4, true>(task, problem.k, x, entries);
  }
  if (task.has_digits || task.tables_offset == 0) return;
  auto* tables = reinterpret_cast<float*>(packed + task.tables_offset);
  return bits == 1 ? pack_sum_tables<1>(task, x, tables) : pack_sum_tables<2>(task, x, tables);
}
constexpr cpu::MatmulPack kFloatPack = digit_pack;
