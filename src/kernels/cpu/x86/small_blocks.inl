// One row by digits (digits.inl) against codes of 4 bits with a scale for every 16 k: nvfp4, msfp12. Blocks are short, so their ends count:
// the sum of a block fits one int32, which takes one digit after the other, acc = (S0 256 + S1) 256 + S2, and is converted once. Per 256
// values 12 dot products, 4 look-ups, 2 shifts, 2 between digits, and 6 for the conversion and the scale. Included in a leaf's namespace
// after matmul_gemv.inl.

/// Bits that digits have less than 24 so that 16 products with values of -offset..offset stay below 2^31.
constexpr int small_headroom(std::int32_t offset) { return offset < 16 ? 0 : 28 - __builtin_clz(static_cast<unsigned>(offset)); }
/// The exponent field of the largest activation, at most: a unit times fp8's scale_power stays finite.
constexpr int kLargestSmallField = 150;

constexpr std::int64_t kScalesAhead = 2048;  // bytes

/// One half of a group; codes: the half's. end(p, sum) takes the sum of part p, 65536 S0 + 256 S1 + S2, beside the products of the next.
template <typename End>
[[gnu::always_inline]] inline void multiply_half(const cpu::DigitGroup& group, int half, I table, const std::byte* codes, const End& end) {
  I sums[3][kParts];
  for (int d = 0; d < 3; ++d)
    for (I& sum : sums[d]) sum = _mm512_set1_epi32(group.start[half][d]);
  const auto joined = [](I high, I low) __attribute__((always_inline)) { return _mm512_add_epi32(shift_left<8>(high), low); };
  unroll<0, 2>([&](auto vector) __attribute__((always_inline)) {  // two words a vector
    constexpr int v = decltype(vector)::value;
    I digits[2][3];
    for (int d = 0; d < 6; ++d) digits[d / 3][d % 3] = dot_activation(group.digit[4 * half + 2 * v + d / 3][d % 3]);
    for (int p = 0; p < kParts; ++p) {
      const I lanes = in_register(load_part<kPrefetchBytes>(codes + v * kVectorBytes, p));
      for (int step = 0; step < 2; ++step) {
        const I values = in_register(_mm512_permutexvar_epi8(step == 0 ? lanes : shift_right<4>(lanes), table));
        for (int d = 0; d < 3; ++d) sums[d][p] = in_register(dot(sums[d][p], values, digits[step][d]));
      }
      if constexpr (v == 1) end(p, in_register(joined(joined(sums[0][p], sums[1][p]), sums[2][p])));
    }
  });
}

/// The only row; sums[64]. The kind of the task's scales is kKind, so that no branch chooses it for every block.
template <cpu::ScaleKind kKind>
void gemv_of_small_blocks(const cpu::FloatTask& task, const FloatPanel& panel, const cpu::DigitGroup* entries, float* sums) {
  const I table = load_lanes(task.bytes);
  const std::byte* codes = panel.codes;
  F totals[kParts];
  for (F& total : totals) total = set(0.0f);
  for (std::int64_t group = 0; group < task.groups; ++group, codes += 4 * kVectorBytes) {
    std::int64_t index = group;
    do {
      asm("" : "+r"(codes));  // decoded anew for a second entry: 32 vectors do not wait in registers
      const cpu::DigitGroup& entry = entries[index];
      unroll<0, 2>([&](auto number) __attribute__((always_inline)) {
        constexpr int kHalf = decltype(number)::value;
        // The product of a unit with an fp8 scale, 2^-9 at least, is exact; with others it could be subnormal.
        constexpr bool kExact = kKind == cpu::ScaleKind::kFp8E4m3;
        const auto* scales =
            static_cast<const std::uint8_t*>(panel.scales) + (panel.first_scale + (2 * group + kHalf) * kLanes) * task.scales.bytes;
        __builtin_prefetch(scales + kScalesAhead, 0, 2);
        const F unit = set(entry.unit[1] * (kExact ? scale_power(kKind) : 1.0f)), power = set(scale_power(kKind));
        multiply_half(
            entry, kHalf, table, codes + kHalf * 2 * kVectorBytes, [&](int p, I whole) __attribute__((always_inline)) {
              const F scale = placed_scales<kKind>(scales + p * kPart * task.scales.bytes), sum = to_float(whole);
              if constexpr (kExact)
                totals[p] = fma(sum, mul(scale, unit), totals[p]);
              else
                totals[p] = fma(mul(sum, unit), scale_power(kKind) == 1.0f ? scale : mul(scale, power), totals[p]);
            });
      });
      index = entry.next;
    } while (index != 0);
  }
  for (int p = 0; p < kParts; ++p) store(sums + p * kPart, mul(totals[p], set(task.scales.factor)));
}

template <typename Decoder>
void gemv_of_small_blocks(const Decoder&, const cpu::FloatTask& task, const FloatPanel& panel, const cpu::DigitGroup* entries,
                          float* sums) {
  with_kind(task.scales.kind, [&](auto kind) { gemv_of_small_blocks<decltype(kind)::value>(task, panel, entries, sums); });
}
