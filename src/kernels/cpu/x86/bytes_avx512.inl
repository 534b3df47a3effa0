// Bytes and masks of 32-bit lanes, codes from sums, and stores around the caches, for AVX-512. Included by a leaf inside its own namespace,
// after vector.inl.

inline void stream(float* to, VF value) { _mm512_stream_ps(to, (__m512)value); }
inline void fence() { _mm_sfence(); }
/// Keeps a loaded vector from being loaded again for every use of it: a core loads one a cycle.
[[gnu::always_inline]] inline VF in_register(VF value) {
  asm("" : "+v"(value));
  return value;
}

/// One byte of every lane of four vectors, in order.
template <int kByte>
[[gnu::always_inline]] inline VBytes bytes_of_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  struct Indices {
    alignas(64) std::uint8_t at[64];
  };
  static constexpr Indices kIndices = [] {
    Indices indices{};
    for (int i = 0; i < 64; ++i) indices.at[i] = static_cast<std::uint8_t>(4 * (i % 32) + kByte);
    return indices;
  }();
  const __m512i indices = _mm512_load_si512(kIndices.at);
  const __m512i low = _mm512_permutex2var_epi8(a, indices, b), high = _mm512_permutex2var_epi8(c, indices, d);
  return (VBytes)_mm512_maskz_shuffle_i64x2(0xFF, low, high, 0x44);
}
[[gnu::always_inline]] inline VBytes lowest_bytes(VU a, VU b, VU c, VU d) {
  return bytes_of_lanes<0>((__m512i)a, (__m512i)b, (__m512i)c, (__m512i)d);
}
[[gnu::always_inline]] inline VBytes highest_bytes(VF a, VF b, VF c, VF d) {
  return bytes_of_lanes<3>((__m512i)a, (__m512i)b, (__m512i)c, (__m512i)d);
}

/// Of every 16-bit lane of two vectors one byte, in order.
template <int kByte>
[[gnu::always_inline]] inline VBytes bytes_of_words(__m512i a, __m512i b) {
  struct Indices {
    alignas(64) std::uint8_t at[64];
  };
  static constexpr Indices kIndices = [] {
    Indices indices{};
    for (int i = 0; i < 64; ++i) indices.at[i] = static_cast<std::uint8_t>(2 * i + kByte);
    return indices;
  }();
  return (VBytes)_mm512_permutex2var_epi8(a, _mm512_load_si512(kIndices.at), b);
}
[[gnu::always_inline]] inline VBytes low_bytes_of(VWords a, VWords b) { return bytes_of_words<0>((__m512i)a, (__m512i)b); }

/// Of every 32-bit lane of two vectors the lower word, in order.
[[gnu::always_inline]] inline __m512i lower_words(__m512i a, __m512i b) {
  struct Indices {
    alignas(64) std::uint16_t at[32];
  };
  static constexpr Indices kIndices = [] {
    Indices indices{};
    for (int i = 0; i < 32; ++i) indices.at[i] = static_cast<std::uint16_t>(2 * i);
    return indices;
  }();
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kIndices.at), b);
}

/// |q| + 2^e * up, 2^e the binade of q, or `lowest` if that is higher; the sign is that of q.
[[gnu::always_inline]] inline VU sum_with_binade(VF quotient, float lowest, float up) {
  const __m512 binade = _mm512_castsi512_ps((__m512i)(as_bits(quotient) & 0xFF800000u));
  const __m512 raised =
      _mm512_maskz_range_ps(0xFFFF, binade, (__m512)splat(lowest), 0x3);  // the larger magnitude with the sign of the first
  return as_bits(multiply_add((VF)raised, splat(up), quotient));
}

/// Codes from what sum_with_binade gives, s | E << 23 | n; the sign is the quotient's, or that of a value which is -0. One dot product of
/// words makes 2^(7 - M) (n + ((E - E0) << M)) - 2^15 s of it, whose low word has everything: the magnitude is moved up to the sign.
struct SumCodes {
  std::int32_t weights, base;
  std::int16_t left;  ///< from there to the bits below the sign
  int right;          ///< 8 - bits
  std::uint8_t mask;  ///< 2^bits - 1
  explicit SumCodes(const ElementPlan& element)
      : weights(1 << 16 | 1 << (7 - element.format.mantissa_bits)),
        base(-((element.format.lowest_field + element.format.shift) << 7)),
        left(static_cast<std::int16_t>(9 + element.format.mantissa_bits - element.bits)),
        right(8 - element.bits),
        mask(static_cast<std::uint8_t>(element.mask)) {}

  /// Of one byte, or in the upper bits of one.
  [[gnu::always_inline]] VBytes upper(const VF (&value)[4], const VU (&sum)[4]) const {
    __m512i words[2];
    for (int i = 0; i < 2; ++i) {
      const auto dot = [&](int v) __attribute__((always_inline)) {
        const VU with_sign = sum[v] | (as_bits(value[v]) & 0x80000000u);
        return _mm512_dpwssd_epi32(_mm512_set1_epi32(base), (__m512i)with_sign, _mm512_set1_epi32(weights));
      };
      const __m512i both = lower_words(dot(2 * i), dot(2 * i + 1));
      words[i] = _mm512_ternarylogic_epi32(_mm512_set1_epi16(-0x8000), both, _mm512_sllv_epi16(both, _mm512_set1_epi16(left)), 0xCA);
    }
    return bytes_of_words<1>(words[0], words[1]);
  }
  [[gnu::always_inline]] VBytes operator()(const VF (&value)[4], const VU (&sum)[4]) const {
    const VBytes codes = upper(value, sum);
    return right == 0 ? codes : (VBytes)((VL)codes >> right) & mask;
  }
};

/// q, or `largest` with its sign where |q| is larger.
[[gnu::always_inline]] inline VF clamped(VF quotient, float largest) {
  return (VF)_mm512_maskz_range_ps(0xFFFF, (__m512)quotient, (__m512)splat(largest),
                                   0x2);  // the smaller magnitude with the sign of the first
}

inline bool any_lane(VI mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
