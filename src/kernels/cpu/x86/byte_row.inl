// One row of FloatTask::normalized against 8-bit floats for AVX-512, two codes of 16 outputs at once: the fields of the codes of a word are
// placed as those of bf16, and a shift and a mask make fp32 of them. Per 64 values 9 operations that decode and 4 FMAs instead of 11 and 4.
// Included in a leaf's namespace after matmul_gemv.inl.

/// A source. The halves of sums are words here, not halves of a group: for scales of 32 k and more.
struct ByteRow {
  static constexpr int kBits = 8, kRows = 1;
  using Zeros = TableDecoder<4>;  // none
  const float* x;
  I mask, right;
  ByteRow(const cpu::FloatTask& task, const float* row)
      : x(row), mask(set_lanes(task.mask | task.mask >> 16)), right(_mm512_set1_epi16(static_cast<short>(task.right_shift))) {}

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&)[kCount][2], F (&sums)[1][kCount][2]) const {
    const float* k = x + group * 32;
    const I upper = set_lanes(0xFFFF0000u);
    unroll<0, 8>([&](auto vector) __attribute__((always_inline)) {
      constexpr int v = decltype(vector)::value;
      I even[kCount], odd[kCount];  // bytes: k + 4 v and k + 4 v + 2, k + 4 v + 1 and k + 4 v + 3
      for (int p = 0; p < kCount; ++p) {
        const I code = load_part<kPrefetchBytes>(codes + v * kVectorBytes, p);
        even[p] = bit_and(_mm512_srav_epi16(_mm512_slli_epi16(code, 8), right), mask);
        odd[p] = bit_and(_mm512_srav_epi16(code, right), mask);
      }
      const auto meet = [&](const I(&words)[kCount], int first) __attribute__((always_inline)) {
        const F low = broadcast(k + 4 * v + first), high = broadcast(k + 4 * v + first + 2);
        for (int p = 0; p < kCount; ++p) sums[0][p][0] = fma(as_float(shift_left<16>(words[p])), low, sums[0][p][0]);
        for (int p = 0; p < kCount; ++p) sums[0][p][1] = fma(as_float(bit_and(words[p], upper)), high, sums[0][p][1]);
      };
      meet(even, 0);
      meet(odd, 1);
    });
  }
};

template <typename Decoder>
void gemv_of_bytes(const Decoder&, const cpu::FloatTask& task, const FloatPanel& panel, const float* row, float* sums) {
  gemv(task, panel, ByteRow(task, row), sums);
}
