// One row of fp32 against codes of 1 or 2 bits by sums of activations in bytes (VPERMB, VPDPBUSD), without rounding activations to int8.
// A nibble of codes chooses one of the 16 sums that it and its activations can give. Activations are whole numbers in a unit that a run of
// groups shares, so these sums are whole numbers below 2^24; their three digits to the base 256 are three tables of 16 bytes. The tables of
// the four nibbles at bits 0 (or 4) of a lane's bytes are a vector: one look-up finds a digit of 64 sums, one dot product adds the four of
// a lane. Per 64 nibbles three of each, and one and a half operations for the indices: 256 codes of 1 bit in four cycles of Zen 4.
// Error: what is left of an activation is at most K 2^-25 of it, or it is added by itself (cpu::Rest); where all values of codes have one
// magnitude, as those of int1, the mean of the run stands for the activation, since the bound counts their sum. Rows beyond that, and short
// ones, take SumTables. Included in a leaf's namespace after matmul_gemv.inl.

/// Groups of a run: those whose sums stay below 2^24 and whose units rarely differ; whole blocks of k hold whole runs.
template <int kBits>
std::int64_t run_groups(const cpu::FloatTask& task) {
  std::int64_t groups = kBits == 1 ? 16 : 4;
  if (task.scales.blocks > 1)
    while (task.halves_per_block / 2 % groups != 0) groups /= 2;
  return groups;
}

/// Where the parts of the packed row lie, from FloatTask::tables_offset on: SumTables, which take more, give their place.
template <int kBits, typename Byte>
struct ByteSums {
  static constexpr std::int64_t kVectorTables = 2 * 3 * 64;  // of a vector of codes: [low or high nibbles][digit][byte of a lane][16]
  Byte* tables;                                              // [group][vector of codes]
  Byte* units;                                               // [run]: of the second digit and of the third, fp32
  Byte* rests;                                               // cpu::Rest
  ByteSums(const cpu::FloatTask& task, Byte* packed)
      : tables(packed + task.tables_offset), units(tables + task.groups * kBits * kVectorTables), rests(units + task.groups * 8) {}
  static_assert(kBits * kVectorTables + 8 + cpu::kGroupRests * sizeof(cpu::Rest) <= kBits * 512);
};

// ---- packing ----

/// The tables of one vector of codes: `whole` points at its first activation, as whole numbers; columns at what a nibble's codes multiply.
template <int kBits>
void pack_byte_tables(const float* whole, const F (&columns)[4 / kBits], std::byte* tables) {
  alignas(64) static constexpr auto kFrom = [] {  // byte 0 of the lanes of two vectors
    std::array<std::uint8_t, 64> from{};
    for (std::size_t i = 0; i < 32; ++i) from[i] = static_cast<std::uint8_t>(4 * i);
    return from;
  }();
  for (int nibble = 0; nibble < 2; ++nibble) {
    I sums[4];  // plus 2^23
    for (int byte = 0; byte < 4; ++byte) {
      const float* x = whole + byte / 2 * 16 + (byte % 2 * 8 + nibble * 4) / kBits;
      F sum = set(0x1p23f);
      for (int code = 0; code < 4 / kBits; ++code) sum = fma(broadcast(x + code), columns[code], sum);
      sums[byte] = _mm512_cvtps_epi32(sum);
    }
    for (int digit = 0; digit < 3; ++digit, tables += 64) {
      const I from = _mm512_add_epi8(load_lanes(kFrom.data()), _mm512_set1_epi8(static_cast<char>(2 - digit)));
      const I low = _mm512_permutex2var_epi8(sums[0], from, sums[1]), high = _mm512_permutex2var_epi8(sums[2], from, sums[3]);
      store_lanes(tables, _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
    }
  }
}

/// The `count` (whole groups) activations at x as whole numbers in a unit, which is returned; 0 where they have none. What is left of those
/// that lose too much goes to `rests` from task.rests on.
template <int kBits>
float pack_run(cpu::FloatTask& task, F tolerance, bool by_mean, const float* x, std::int64_t first_group, std::int64_t count, float* whole,
               cpu::Rest* rests) {
  F largest = set(0.0f), sum = set(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    const F magnitude = _mm512_abs_ps(load(x + i));
    largest = as_float(larger(_mm512_castps_si512(largest), _mm512_castps_si512(magnitude)));
    sum = plus(sum, magnitude);
  }
  const int amax = _mm512_reduce_max_epi32(_mm512_castps_si512(largest));
  const int field = (amax + 0x20000) >> 23;  // amax 2^(149 - field) is at most 2^23 - 2^16
  if (amax != 0 && (field < 40 || field > 214)) return 0.0f;
  const int spread = 4 / kBits * task.byte_offset;  // of a sum over an activation, 2 at least: sums stay below 2^23
  const int shift = amax == 0 ? 0 : 149 - field - (32 - __builtin_clz(static_cast<unsigned>(spread) - 1u));
  const F scale = set(__builtin_bit_cast(float, (127 + shift) << 23)), unit = set(__builtin_bit_cast(float, (127 - shift) << 23));
  const F mean = set(_mm512_reduce_add_ps(sum) / static_cast<float>(count));
  for (std::int64_t i = 0; i < count; i += 16) {
    const F value = load(x + i), steps = _mm512_roundscale_ps(mul(value, scale), 0), left = _mm512_fnmadd_ps(steps, unit, value);
    store(whole + i, steps);
    const F weight = by_mean ? mean : _mm512_abs_ps(value);
    unsigned too_large = _mm512_cmp_ps_mask(_mm512_abs_ps(left), mul(weight, tolerance), _CMP_NLE_UQ);
    for (; too_large != 0; too_large &= too_large - 1) {
      if (task.rests == task.groups * cpu::kGroupRests) return 0.0f;
      const int k = static_cast<int>(i % 32) + __builtin_ctz(too_large), per_word = 16 / kBits;
      const std::int64_t group = first_group + i / 32;
      rests[task.rests++] = {static_cast<std::int32_t>(group * kBits + k % 16 / per_word), k / 16 * 16 + k % per_word * kBits,
                             static_cast<std::int32_t>(2 * group / task.halves_per_block), x[i + k % 16] - whole[i + k % 16] * unit[0]};
    }
  }
  return unit[0];
}

/// False where the row's range is too wide, or not finite.
template <int kBits>
bool pack_byte_sums(cpu::FloatTask& task, std::int64_t k, const float* x, std::byte* packed) {
  const ByteSums<kBits, std::byte> place(task, packed);
  alignas(64) float column[16], whole[16 * 32];
  F columns[4 / kBits];
  bool one_magnitude = true;
  for (int code = 0; code < 4 / kBits; ++code) {
    for (int i = 0; i < 16; ++i) {
      const int steps = task.bytes[i >> (kBits * code)] - task.byte_offset;
      column[i] = static_cast<float>(steps);
      one_magnitude = one_magnitude && (steps == task.byte_offset || steps == -task.byte_offset);
    }
    columns[code] = load(column);
  }
  const F tolerance = set(static_cast<float>(k) * 0x1p-25f);
  const std::int64_t step = run_groups<kBits>(task);
  auto* units = reinterpret_cast<float*>(place.units);
  task.rests = 0;
  for (std::int64_t group = 0; group < task.groups; group += step) {
    const std::int64_t count = group + step < task.groups ? step : task.groups - group;
    const float unit = pack_run<kBits>(task, tolerance, one_magnitude, x + group * 32, group, count * 32, whole,
                                       reinterpret_cast<cpu::Rest*>(place.rests));
    if (unit == 0.0f) return false;
    *units++ = unit * task.byte_unit * 256.0f;
    *units++ = unit * task.byte_unit;
    for (std::int64_t i = 0; i < count * kBits; ++i)
      pack_byte_tables<kBits>(whole + i / kBits * 32 + i % kBits * (16 / kBits), columns,
                              place.tables + (group * kBits + i) * ByteSums<kBits, std::byte>::kVectorTables);
  }
  return true;
}

// ---- the product ----

/// sums[digit] += the bytes that the four indices of a lane choose. In this order three look-ups and three dot products leave no unit
/// waiting: compilers' own takes a fifth longer.
[[gnu::always_inline]] inline void add_chosen(I indices, const I (&tables)[3], I ones, I (&sums)[3]) {
  I chosen[3];
  for (int d = 0; d < 3; ++d) asm volatile("vpermb %2, %1, %0" : "=v"(chosen[d]) : "v"(indices), "v"(tables[d]));
  for (int d = 0; d < 3; ++d) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums[d]) : "v"(chosen[d]), "v"(ones));
}

/// The only row; sums[64].
template <typename Decoder>
void gemv_by_byte_sums(const Decoder& decoder, const cpu::FloatTask& task, const FloatPanel& panel, const std::byte* packed, float* sums) {
  constexpr int kBits = Decoder::kBits;
  const ByteSums<kBits, const std::byte> place(task, packed);
  const I nibbles = set_lanes(0x0F0F0F0Fu), tables_of_bytes = set_lanes(0x30201000u), ones = in_register(_mm512_set1_epi8(1));
  const std::byte *codes = panel.codes, *tables = place.tables;
  const auto* units = reinterpret_cast<const float*>(place.units);
  const auto load_tables = [&](I(&digits)[3]) __attribute__((always_inline)) {
    for (int d = 0; d < 3; ++d, tables += 64) digits[d] = in_register(load_lanes(tables));
  };
  const auto load_block = [&](std::int64_t block, F(&factors)[kParts]) __attribute__((always_inline)) {
    load_own_scales(task.scales, panel.scales, panel.first_scale + block * kLanes, factors);
  };
  F totals[kParts], factors[kParts];
  for (F& total : totals) total = set(0.0f);
  const std::int64_t step = run_groups<kBits>(task);
  std::int64_t block = 0, block_end = task.halves_per_block / 2;
  for (std::int64_t group = 0; group < task.groups; group += step, units += 2) {
    if (group == block_end) {
      ++block;
      block_end += task.halves_per_block / 2;
    }
    const std::int64_t vectors = kBits * (group + step < task.groups ? step : task.groups - group);
    I digits[kParts][3];  // the first with 128 too much for each nibble
    for (int p = 0; p < kParts; ++p) {
      digits[p][0] = set_lanes(static_cast<std::uint32_t>(-128 * 8 * vectors));
      digits[p][1] = digits[p][2] = set_lanes(0);
    }
    for (std::int64_t vector = 0; vector < vectors; ++vector, codes += kVectorBytes) {
      I chosen_by[3], high[kParts];
      load_tables(chosen_by);
      for (int p = 0; p < kParts; ++p) {
        const I lanes = load_part<kPrefetchBytes>(codes, p);
        high[p] = in_register(shift_right<4>(lanes));
        add_chosen(and_or(lanes, nibbles, tables_of_bytes), chosen_by, ones, digits[p]);
      }
      load_tables(chosen_by);
      for (int p = 0; p < kParts; ++p) add_chosen(and_or(high[p], nibbles, tables_of_bytes), chosen_by, ones, digits[p]);
    }
    const F high = broadcast(units), low = broadcast(units + 1);
    load_block(block, factors);
    for (int p = 0; p < kParts; ++p) {
      const F first = mul(to_float(_mm512_add_epi32(shift_left<8>(digits[p][0]), digits[p][1])), high);
      totals[p] = fma(fma(to_float(digits[p][2]), low, first), factors[p], totals[p]);
    }
  }
  const auto* rests = reinterpret_cast<const cpu::Rest*>(place.rests);
  for (std::int64_t i = 0; i < task.rests; ++i) {
    const cpu::Rest& rest = rests[i];
    const I shift = set_lanes(static_cast<std::uint32_t>(rest.shift));
    load_block(rest.block, factors);
    for (int p = 0; p < kParts; ++p) {
      const I code = _mm512_srlv_epi32(load_lanes(panel.codes + rest.vector * kVectorBytes + p * kPart * 4), shift);
      totals[p] = fma(mul(decoder.template decode<0>(code, set(0.0f)), set(rest.value)), factors[p], totals[p]);
    }
  }
  for (int p = 0; p < kParts; ++p) store(sums + p * kPart, mul(totals[p], set(task.scales.factor)));
}
