// Bytes and masks of 32-bit lanes, and stores around the caches, for AVX2. Included by a leaf inside its own namespace, after vector.inl.

inline void stream(float* to, VF value) { _mm256_stream_ps(to, (__m256)value); }
inline VF in_register(VF value) { return value; }
inline void fence() { _mm_sfence(); }

/// One byte of every lane of four vectors, in order. Packing works within the halves of a register; the last step joins them.
inline VBytes pack_lanes(VU a, VU b, VU c, VU d) {
  const __m256i low = _mm256_packus_epi32((__m256i)a, (__m256i)b), high = _mm256_packus_epi32((__m256i)c, (__m256i)d);
  return (VBytes)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
[[gnu::always_inline]] inline VBytes lowest_bytes(VU a, VU b, VU c, VU d) { return pack_lanes(a & 0xFFu, b & 0xFFu, c & 0xFFu, d & 0xFFu); }
[[gnu::always_inline]] inline VBytes highest_bytes(VF a, VF b, VF c, VF d) {
  return pack_lanes(as_bits(a) >> 24, as_bits(b) >> 24, as_bits(c) >> 24, as_bits(d) >> 24);
}

/// The low byte of every 16-bit lane of two vectors, in order.
[[gnu::always_inline]] inline VBytes low_bytes_of(VWords a, VWords b) {
  constexpr std::uint16_t kByte = 0xFF;
  return (VBytes)_mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)(a & kByte), (__m256i)(b & kByte)), 0xD8);
}

/// |q| + 2^e * up, 2^e the binade of q, or `lowest` if that is higher; without a sign.
[[gnu::always_inline]] inline VU sum_with_binade(VF quotient, float lowest, float up) {
  const VI of = magnitude_of(quotient);
  const VF binade = as_float(larger(of & kInfinityBits, as_int(splat(lowest))));
  return as_bits(multiply_add(binade, splat(up), as_float(of)));
}

#include "kernels/cpu/quantize/sum_codes.inl"

/// |q|, or `largest` where that is smaller.
[[gnu::always_inline]] inline VF clamped(VF quotient, float largest) {
  return as_float(smaller(magnitude_of(quotient), as_int(splat(largest))));
}

inline bool any_lane(VI mask) { return _mm256_movemask_epi8((__m256i)mask) != 0; }
