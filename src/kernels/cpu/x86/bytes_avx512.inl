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

inline bool any_lane(VI mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
