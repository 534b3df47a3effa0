// One row of fp32 against codes of 2 to 4 bits, or int8, by integer dot products, as x86/digits.inl, for leaves of fewer registers: no
// activation is rounded to 8 bits. 32 activations are whole numbers in a common unit, in three digits of a byte (cpu::DigitGroup). Included
// in a leaf's namespace after its add_words (digits times codes) and ByteDigits (int8), which follow digit_codes.inl.
// Error: that of the digits, K 2^-25 sum |x||w|, and a rounding per group and block. Bound: the memory that holds the weight.

// ---- activations to digits ----

/// All groups, entry by entry; false where kDigitEntries do not hold one.
template <typename Numbers, typename Entry, typename Write>
bool pack_digit_groups(const cpu::FloatTask& task, std::int64_t k, const float* x, Entry* entries, const Write& write) {
  auto spare = static_cast<std::int32_t>(task.groups);
  const float tolerance = static_cast<float>(k) * 0x1p-25f;
  for (std::int64_t group = 0; group < task.groups; ++group) {
    Numbers numbers;
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

/// A group, or half of one, of 16 outputs: what digit_rows adds up.
template <int kBits, bool kSmall, DigitCodes kCodes>
struct CodeDigits {
  static constexpr int kCodeBits = kBits;
  static constexpr bool kHalves = kSmall, kHasZeros = kCodes == DigitCodes::kZeros;
  using Entry = cpu::DigitGroup;
  const Entry* entries;
  DigitTable table;

  template <int kHalf>
  [[gnu::always_inline]] F add(const Entry& group, I zeros, const std::byte* codes, F base) const {
    if constexpr (kSmall)
      return add_words<kBits, kCodes, 4 * kHalf, 4>(group, group.start[kHalf], table, zeros, codes, base);
    else
      return add_words<kBits, kCodes, 0, 8>(group, group.start[0], table, zeros, codes, base);
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
    return digit_row(task, panel, ByteDigits{reinterpret_cast<const ByteDigits::Entry*>(digits)}, sums);
  } else {
    constexpr DigitCodes kCodes = Decoder::kZero ? DigitCodes::kZeros : (Decoder::kLookUp ? DigitCodes::kTable : DigitCodes::kOffset);
    const auto* entries = reinterpret_cast<const cpu::DigitGroup*>(digits);
    const DigitTable table = load_digit_table(task);
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
  const auto pack = [&](auto* entries, auto numbers, const auto& write) {
    task.has_digits = pack_digit_groups<decltype(numbers)>(task, problem.k, x, entries, write);
  };
  std::byte* digits = packed + task.digits_offset;
  if (bits == 8) {
    using From = WholeNumbers<ByteDigits::kWhole>;
    pack(reinterpret_cast<ByteDigits::Entry*>(digits), From{},
         [&](const From& from, ByteDigits::Entry& to) { ByteDigits::write(task, from, to); });
  } else if (2 * task.byte_offset <= kLargestByte) {
    using From = WholeNumbers<23>;
    using To = cpu::DigitGroup;
    auto* entries = reinterpret_cast<To*>(digits);
    if (bits == 2) pack(entries, From{}, [&](const From& from, To& to) { write_digits<2, false>(task, from, to); });
    if (bits == 3) pack(entries, From{}, [&](const From& from, To& to) { write_digits<3, false>(task, from, to); });
    if (bits == 4 && task.halves_per_block > 1)
      pack(entries, From{}, [&](const From& from, To& to) { write_digits<4, false>(task, from, to); });
    if (bits == 4 && task.halves_per_block == 1)
      pack(entries, From{}, [&](const From& from, To& to) { write_digits<4, true>(task, from, to); });
  }
  if (!task.has_digits && task.tables_offset != 0) cpu::float_pack_tables(problem, packed);
}
constexpr cpu::MatmulPack kFloatPack = digit_pack;
