// Codes of 6 bits for AVX-512: one look-up by 16-bit words decodes the codes k and k + 16 of 16 outputs to bf16, which holds every
// value of these formats exactly; a shift and a mask make fp32 of them. Included after matmul_decode.inl.

struct Float6Decoder {
  static constexpr int kBits = 6;
  static constexpr bool kZero = false, kPairs = true;
  I low, high, upper_half;
  explicit Float6Decoder(const cpu::FloatTask& task)
      : low(load_lanes(task.words)), high(load_lanes(task.words + 32)), upper_half(set_lanes(0xFFFF0000u)) {}
  template <int kShift>
  [[gnu::always_inline]] void decode_pair(I lane, const F (&)[2], F (&values)[2]) const {
    const I both = _mm512_permutex2var_epi16(low, shift_right<kShift>(lane), high);
    values[0] = as_float(shift_left<16>(both));
    values[1] = as_float(bit_and(both, upper_half));
  }
};
