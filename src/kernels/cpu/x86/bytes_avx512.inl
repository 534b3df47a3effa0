// Bytes and masks of 32-bit lanes, and stores around the caches, for AVX-512. Included by a leaf inside its own namespace, after vector.inl.

inline void stream(float* to, VF value) { _mm512_stream_ps(to, (__m512)value); }
inline void fence() { _mm_sfence(); }

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
[[gnu::always_inline]] inline VBytes lowest_bytes(VU a, VU b, VU c, VU d) { return bytes_of_lanes<0>((__m512i)a, (__m512i)b, (__m512i)c, (__m512i)d); }
[[gnu::always_inline]] inline VBytes highest_bytes(VF a, VF b, VF c, VF d) { return bytes_of_lanes<3>((__m512i)a, (__m512i)b, (__m512i)c, (__m512i)d); }

/// |q| + 2^e * up, 2^e the binade of q, or `lowest` if that is higher; the sign is that of q.
[[gnu::always_inline]] inline VU sum_with_binade(VF quotient, float lowest, float up) {
  const __m512 binade = _mm512_castsi512_ps((__m512i)(as_bits(quotient) & 0xFF800000u));
  const __m512 raised =
      _mm512_maskz_range_ps(0xFFFF, binade, (__m512)splat(lowest), 0x3);  // the larger magnitude with the sign of the first
  return as_bits(multiply_add((VF)raised, splat(up), quotient));
}

/// q, or `largest` with its sign where |q| is larger.
[[gnu::always_inline]] inline VF clamped(VF quotient, float largest) {
  return (VF)_mm512_maskz_range_ps(0xFFFF, (__m512)quotient, (__m512)splat(largest),
                                   0x2);  // the smaller magnitude with the sign of the first
}

inline bool any_lane(VI mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
