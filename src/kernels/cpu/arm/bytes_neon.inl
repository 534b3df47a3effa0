// Bytes and masks of 32-bit lanes, for NEON, which has no stores around the caches. Included by a leaf inside its own namespace, after vector.inl.

inline void stream(float* to, VF value) { store(to, value); }
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

inline bool any_lane(VI mask) { return vmaxvq_u32((uint32x4_t)mask) != 0; }
