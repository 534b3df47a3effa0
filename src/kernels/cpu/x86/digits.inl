// One row of fp32 against codes of 3 or 4 bits, or int8, by integer dot products (VPDPBUSD), without rounding activations to int8: 32 of
// them are whole numbers of 24 bits in a common unit, in three digits of signed bytes (cpu::DigitGroup), and the values of codes are bytes.
// Sums of a group are exact; per 64 values a look-up of bytes (VPERMB; none of int8) and three dot products replace four shifts, look-ups
// and FMAs. Groups whose activations differ by more than a factor of K / 2 take another round for what is left; rows beyond that are
// decoded. Error: K 2^-25 sum |x||w| of the digits, and a rounding per group and block. Included in a leaf's namespace after
// matmul_gemv.inl.

/// The k (0..31) of byte `byte` of word `word`, in the order in which DigitRow meets codes.
constexpr int digit_k(int bits, int word, int byte) {
  if (bits != 3) return 4 * word + byte;
  return byte / 2 * 16 + word / 2 * 4 + byte % 2 * 2 + word % 2;
}

/// Where the bytes of a DigitGroup's digits come from: 32 lanes of four bytes, the highest digit in the third.
template <int kBits>
struct DigitPlaces {
  alignas(64) std::uint8_t from[128];
  constexpr DigitPlaces() : from{} {
    for (int i = 0; i < 96; ++i) from[i] = static_cast<std::uint8_t>(4 * digit_k(kBits, i / 12, i % 4) + 2 - i / 4 % 3);
  }
};

/// The 32 activations at x, entry by entry; false where kDigitEntries do not hold them. entry: the group's first; spare: the next free.
template <int kBits, bool kSmall>
bool pack_digit_group(const cpu::FloatTask& task, F tolerance, const float* x, cpu::DigitGroup* entries, std::int64_t entry,
                      std::int32_t& spare) {
  static constexpr DigitPlaces<kBits> kPlaces;
  const I magnitude = set_lanes(0x7FFFFFFFu), carry = set_lanes(0x00808080u);
  const F x0 = load(x), x1 = load(x + 16);
  F left0 = x0, left1 = x1;
  for (int round = 0;; ++round) {
    const I largest = _mm512_max_epi32(bit_and(_mm512_castps_si512(left0), magnitude), bit_and(_mm512_castps_si512(left1), magnitude));
    const int amax = _mm512_reduce_max_epi32(largest);
    const int field = (amax + 0x20000) >> 23;  // amax 2^(149 - field) is at most 2^23 - 2^16, and three digits go up to 2^23 - 2^15 - 129
    if (amax != 0 && (field < 40 || field > (kSmall ? kLargestSmallField : 214))) return false;
    const int headroom = kSmall ? small_headroom(task.byte_offset) : 0;
    const std::uint32_t shift = amax == 0 ? 0u : static_cast<std::uint32_t>(149 - headroom - field);
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
    const auto sum_of = [&](int half, int d) {
      const std::int32_t* words = sums + 12 * half + d;
      return words[0] + words[3] + words[6] + words[9];
    };
    for (int d = 0; d < 3; ++d) {
      group.start[0][d] = -task.byte_offset * (kSmall ? sum_of(0, d) : sum_of(0, d) + sum_of(1, d));
      group.start[1][d] = -task.byte_offset * sum_of(1, d);
    }
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

/// A source of matmul_gemv.inl, for scales of 32 k and more; fetches kFetchAhead bytes ahead.
template <typename Decoder, std::int64_t kFetchAhead>
struct DigitRow {
  static constexpr int kBits = Decoder::kBits, kRows = 1, kDigits = 3;
  static constexpr int kLargest = 8;  // 32 * 8 (2^23 - 2^16) < 2^31
  static_assert(kBits == 3 || kBits == 4 || kBits == 8);
  static constexpr bool kZeros = Decoder::kZero && kBits < 8;  // asymmetric codes
  using Zeros = std::conditional_t<kZeros, Decoder, TableDecoder<4>>;
  const cpu::DigitGroup* entries;
  I table = {};       // of the values of codes in units, plus byte_offset: 64, repeated
  I upper = {};       // 3 bits: the same of the upper one of two codes
  bool fits = false;  // whether codes are at most kLargest units

  template <int kCount>
  using Sums = I[kDigits][kCount];

  /// -byte_offset times the sums of digits; of asymmetric codes, whose byte_offset is 1, times their zero points: both fit words.
  template <int kCount>
  [[gnu::always_inline]] static void start(const std::int32_t* starts, const F (&zeros)[kCount][2], Sums<kCount>& sums) {
    for (int d = 0; d < kDigits; ++d)
      for (int p = 0; p < kCount; ++p) {
        const I sum = _mm512_set1_epi32(starts[d]);
        sums[d][p] = kZeros ? _mm512_dpwssd_epi32(set_lanes(0), _mm512_cvtps_epi32(zeros[p][0]), sum) : sum;
      }
  }

  /// totals += the value of the sums; that of two digits is a number of 32 bits, that of three where codes are small.
  template <int kCount>
  [[gnu::always_inline]] void finish(const cpu::DigitGroup& group, const Sums<kCount>& sums, F (&totals)[1][kCount][2]) const {
    const F high = broadcast(group.unit), low = broadcast(group.unit + 1);
    const auto two = [&](int p) { return _mm512_add_epi32(shift_left<8>(sums[0][p]), sums[1][p]); };
    asm("" : "+m"(totals));  // which wait in the cache: the registers are a group's
    if (fits) {
      for (int p = 0; p < kCount; ++p)
        totals[0][p][0] = fma(to_float(_mm512_add_epi32(shift_left<8>(two(p)), sums[2][p])), low, totals[0][p][0]);
    } else {
      for (int p = 0; p < kCount; ++p) totals[0][p][0] = fma(to_float(sums[2][p]), low, fma(to_float(two(p)), high, totals[0][p][0]));
    }
  }

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t index, const std::byte* codes, const F (&zeros)[kCount][2],
                                  F (&totals)[1][kCount][2]) const {
    do {
      asm("" : "+r"(codes));  // decoded anew for a second entry: 32 vectors do not wait in registers
      add_entry<kCount>(entries[index], codes, zeros, totals);
      index = entries[index].next;
    } while (index != 0);
  }

  template <int kCount>
  [[gnu::always_inline]] void add_entry(const cpu::DigitGroup& group, const std::byte* codes, const F (&zeros)[kCount][2],
                                        F (&totals)[1][kCount][2]) const {
    Sums<kCount> sums;
    start<kCount>(group.start[0], zeros, sums);
    if constexpr (kBits == 3 || kBits == 4) {  // two words a vector
      SpareCodes<kBits> spare[kCount];
      unroll<0, kByteVectors<kBits>>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value;
        I digits[2][kDigits];
        for (int d = 0; d < 2 * kDigits; ++d)
          digits[d / kDigits][d % kDigits] = dot_activation(group.digit[2 * v + d / kDigits][d % kDigits]);
        for (int p = 0; p < kCount; ++p) {
          const I lanes = in_register(load_bytes<v, kFetchAhead>(codes, p, spare[p]));
          for (int step = 0; step < 2; ++step) {
            const I index = kBits == 4 && step == 1 ? shift_right<4>(lanes) : lanes;  // a look-up sees six bits, two codes of 3 bits
            const I values = in_register(_mm512_permutexvar_epi8(index, kBits == 3 && step == 1 ? upper : table));
            for (int d = 0; d < kDigits; ++d) sums[d][p] = in_register(dot(sums[d][p], values, digits[step][d]));
          }
        }
      });
    } else {  // codes are values
      unroll<0, 8>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value;
        I values[kCount];
        for (int p = 0; p < kCount; ++p) values[p] = in_register(load_part<kFetchAhead>(codes + v * kVectorBytes, p));
        for (int d = 0; d < kDigits; ++d) {
          const I digit = dot_activation(group.digit[v][d]);
          for (int p = 0; p < kCount; ++p) sums[d][p] = dot(sums[d][p], values[p], digit);
        }
      });
    }
    finish<kCount>(group, sums, totals);
  }
};

/// The only row, by digits.
template <typename Decoder>
void gemv_by_digits(const Decoder& decoder, const cpu::FloatTask& task, const FloatPanel& panel, const std::byte* packed, float* sums) {
  const auto* entries = reinterpret_cast<const cpu::DigitGroup*>(packed + task.digits_offset);
  alignas(64) std::uint8_t upper[64];
  for (int i = 0; i < 64; ++i) upper[i] = task.bytes[i >> 3];
  const auto run = [&](auto row) {
    row.table = load_lanes(task.bytes);
    row.upper = load_lanes(upper);
    row.fits = decltype(row)::kBits < 8 && !decltype(row)::kZeros && task.byte_offset <= decltype(row)::kLargest;
    gemv(task, panel, row, sums);
  };
  if constexpr (Decoder::kBits == 4 && !Decoder::kZero)
    if (task.halves_per_block == 1) return gemv_of_small_blocks(decoder, task, panel, entries, sums);
  if constexpr (Decoder::kBits == 8)
    if (task.fetches_near) return run(DigitRow<Decoder, kNearBytes>{entries});
  run(DigitRow < Decoder, Decoder::kBits == 4 ? kPrefetchBytes : kPrefetchBytes / 2 > {entries});
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

/// As cpu::float_pack, and the digits or sums in bytes.
void digit_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  cpu::float_pack_rows(problem, m_begin, m_end, packed);
  cpu::FloatTask& task = *reinterpret_cast<cpu::FloatTask*>(packed);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  const int bits = problem.w.scheme.element.bits;
  if (task.takes_byte_sums)
    task.has_byte_sums = bits == 1 ? pack_byte_sums<1>(task, problem.k, x, packed) : pack_byte_sums<2>(task, problem.k, x, packed);
  if (task.digits_offset != 0) {
    auto* entries = reinterpret_cast<cpu::DigitGroup*>(packed + task.digits_offset);
    if (bits == 8) task.has_digits = pack_digit_groups<8, false>(task, problem.k, x, entries);
    if (bits == 3) task.has_digits = pack_digit_groups<3, false>(task, problem.k, x, entries);
    if (bits == 4 && task.halves_per_block > 1) task.has_digits = pack_digit_groups<4, false>(task, problem.k, x, entries);
    if (bits == 4 && task.halves_per_block == 1) task.has_digits = pack_digit_groups<4, true>(task, problem.k, x, entries);
  }
  if (task.has_digits || task.has_byte_sums || task.tables_offset == 0) return;
  auto* tables = reinterpret_cast<float*>(packed + task.tables_offset);
  return bits == 1 ? pack_sum_tables<1>(task, x, tables) : pack_sum_tables<2>(task, x, tables);
}
constexpr cpu::MatmulPack kFloatPack = digit_pack;
