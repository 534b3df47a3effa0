// One row by digits (digits.inl) against codes of 4 bits with a scale for every 16 k: nvfp4, msfp12. Blocks are short, so their ends count:
// the sum of a block fits one int32, which takes one digit after the other, acc = (S0 256 + S1) 256 + S2, and is converted once. The low
// words of two vectors side by side, or their high ones, are the codes of a block. Per 256 values 12 dot products, 4 look-ups, 6 operations
// that place codes, 2 shifts, and 8 for the conversion and the scale. Included in a leaf's namespace after matmul_gemv.inl.

/// -offset times the sums of a digit over 16 k, as multiply_digits takes it: the bytes of the whole sum, the lower two in the top of a
/// lane.
inline void set_small_start(std::int32_t first, std::int32_t second, std::int32_t third, std::int32_t offset, std::int32_t (&start)[3]) {
  const std::int32_t whole = -offset * (65536 * first + 256 * second + third);
  start[0] = whole >> 16;
  start[1] = static_cast<std::int32_t>((static_cast<std::uint32_t>(whole) & 0xFF00u) << 16);
  start[2] = static_cast<std::int32_t>(static_cast<std::uint32_t>(whole) << 24);
}
/// Bits that digits have less than 24 so that 16 products with values of -offset..offset stay below 2^31.
constexpr int small_headroom(std::int32_t offset) { return offset < 16 ? 0 : 28 - __builtin_clz(static_cast<unsigned>(offset)); }

/// sums = of one half of a group; values[word][part] are the bytes of its codes. Fetches the eight lines from `ahead` on in between.
[[gnu::always_inline]] inline void multiply_digits(const cpu::DigitGroup& group, int half, const I (&values)[4][kParts],
                                                   const std::byte* ahead, I (&sums)[kParts]) {
  for (I& sum : sums) sum = _mm512_set1_epi32(group.start[half][0]);
  for (int d = 0; d < 3; ++d) {
    if (d > 0)
      for (I& sum : sums) sum = _mm512_shldi_epi32(sum, _mm512_set1_epi32(group.start[half][d]), 8);
    for (int word = 0; word < 4; ++word) {
      if (d < 2) asm volatile("prefetcht1 %0" : : "m"(*reinterpret_cast<const char*>(ahead + (4 * d + word) * 64)));
      const I digit = dot_activation(group.digit[4 * half + word][d]);
      for (int p = 0; p < kParts; ++p) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums[p]) : "v"(values[word][p]), "v"(digit));
    }
  }
}

constexpr std::int64_t kScalesAhead = 2048;  // bytes

/// The only row; sums[64]. The kind of the task's scales is kKind, so that no branch chooses it for every block.
template <cpu::ScaleKind kKind>
void gemv_of_small_blocks(const cpu::FloatTask& task, const FloatPanel& panel, const cpu::DigitGroup* entries, float* sums) {
  cpu::PanelScales panel_scales = task.scales;
  panel_scales.kind = kKind;
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
        I values[4][kParts], whole[kParts];
        for (int v = 0; v < 4; v += 2)
          for (int p = 0; p < kParts; ++p) {
            const I a = load_part<0>(codes + v * kVectorBytes, p), b = load_part<0>(codes + (v + 1) * kVectorBytes, p);
            const I low = kHalf == 0 ? a : shift_right<16>(a), high = kHalf == 0 ? shift_left<16>(b) : b;
            const I words = _mm512_mask_blend_epi16(0xAAAAAAAAu, low, high);
            values[v][p] = _mm512_permutexvar_epi8(words, table);
            values[v + 1][p] = _mm512_permutexvar_epi8(shift_right<4>(words), table);
          }
        multiply_digits(entry, kHalf, values, codes + kPrefetchBytes + kHalf * 2 * kVectorBytes, whole);
        const std::int64_t scale = panel.first_scale + (2 * group + kHalf) * kLanes;
        const auto* data = static_cast<const char*>(panel.scales);
        // Scales are not loaded before the products: their registers are wanted there.
        asm volatile("prefetcht1 %1" : "+r"(data) : "m"(data[scale * panel_scales.bytes + kScalesAhead]));
        F scales[kParts];
        load_own_scales(panel_scales, data, scale, scales);
        const F unit = broadcast(entry.unit + 1);
        for (int p = 0; p < kParts; ++p) totals[p] = fma(mul(to_float(whole[p]), unit), scales[p], totals[p]);
      });
      index = entry.next;
    } while (index != 0);
  }
  for (int p = 0; p < kParts; ++p) store(sums + p * kPart, mul(totals[p], set(task.scales.factor)));
}

template <typename Decoder>
void gemv_of_small_blocks(const Decoder&, const cpu::FloatTask& task, const FloatPanel& panel, const cpu::DigitGroup* entries,
                          float* sums) {
  using cpu::ScaleKind;
  switch (task.scales.kind) {
    case ScaleKind::kFp32: return gemv_of_small_blocks<ScaleKind::kFp32>(task, panel, entries, sums);
    case ScaleKind::kBf16: return gemv_of_small_blocks<ScaleKind::kBf16>(task, panel, entries, sums);
    case ScaleKind::kFp16: return gemv_of_small_blocks<ScaleKind::kFp16>(task, panel, entries, sums);
    case ScaleKind::kE8m0: return gemv_of_small_blocks<ScaleKind::kE8m0>(task, panel, entries, sums);
    case ScaleKind::kFp8E4m3: return gemv_of_small_blocks<ScaleKind::kFp8E4m3>(task, panel, entries, sums);
    case ScaleKind::kNone: return gemv_of_small_blocks<ScaleKind::kNone>(task, panel, entries, sums);
  }
}
