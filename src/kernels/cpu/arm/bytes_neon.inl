// Bytes and masks of 32-bit lanes, for NEON, which has no stores around the caches. Included by a leaf inside its own namespace, after
// vector.inl.

inline void stream(float* to, VF value) { store(to, value); }
inline VF in_register(VF value) { return value; }
inline void fence() {}

/// The lowest byte of every lane of four vectors, in order.
[[gnu::always_inline]] inline VBytes lowest_bytes(VU a, VU b, VU c, VU d) {
  const uint16x8_t low = vuzp1q_u16((uint16x8_t)a, (uint16x8_t)b), high = vuzp1q_u16((uint16x8_t)c, (uint16x8_t)d);
  return (VBytes)vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
}
[[gnu::always_inline]] inline VBytes highest_bytes(VF a, VF b, VF c, VF d) {
  const uint16x8_t low = vuzp2q_u16((uint16x8_t)a, (uint16x8_t)b), high = vuzp2q_u16((uint16x8_t)c, (uint16x8_t)d);
  return (VBytes)vuzp2q_u8((uint8x16_t)low, (uint8x16_t)high);
}

/// The low byte of every 16-bit lane of two vectors, in order.
[[gnu::always_inline]] inline VBytes low_bytes_of(VWords a, VWords b) { return (VBytes)vuzp1q_u8((uint8x16_t)a, (uint8x16_t)b); }

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

inline bool any_lane(VI mask) { return vmaxvq_u32((uint32x4_t)mask) != 0; }
