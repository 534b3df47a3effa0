// 16 lanes of 32 bits in four NEON registers: what the generic bodies of matmul are written in. Included in the leaf's namespace.
// The leaf defines its dot product: NARROW_DOT_NEON (widening multiplies), NARROW_DOT_SDOT or NARROW_DOT_USDOT.

struct F {
  float32x4_t v[4];
};
struct I {
  uint32x4_t v[4];
};

constexpr int kGemvParts = 2;
constexpr int kTileParts = 1;   // of a register tile: 6 x 16 sums, 24 of 32 registers
constexpr int kTileRows = 6;

#define NARROW_FOUR(expression)                       \
  for (int i = 0; i < 4; ++i) result.v[i] = expression; \
  return result

inline F load(const float* p) { F result; NARROW_FOUR(vld1q_f32(p + 4 * i)); }
inline void store(float* p, const F& a) { for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]); }
inline I load_lanes(const void* p) { I result; NARROW_FOUR(vld1q_u32(static_cast<const std::uint32_t*>(p) + 4 * i)); }
inline void store_lanes(void* p, const I& a) { for (int i = 0; i < 4; ++i) vst1q_u32(static_cast<std::uint32_t*>(p) + 4 * i, a.v[i]); }
inline F set(float x) { F result; NARROW_FOUR(vdupq_n_f32(x)); }
inline F broadcast(const float* p) { return set(*p); }
inline I set_lanes(std::uint32_t x) { I result; NARROW_FOUR(vdupq_n_u32(x)); }
inline F fma(const F& a, const F& b, const F& c) { F result; NARROW_FOUR(vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
inline F mul(const F& a, const F& b) { F result; NARROW_FOUR(vmulq_f32(a.v[i], b.v[i])); }
inline F sub(const F& a, const F& b) { F result; NARROW_FOUR(vsubq_f32(a.v[i], b.v[i])); }
template <int kCount>
inline I shift_left(const I& a) {
  I result;
  if constexpr (kCount == 0) return a; else NARROW_FOUR(vshlq_n_u32(a.v[i], kCount));
}
template <int kCount>
inline I shift_right(const I& a) {
  I result;
  if constexpr (kCount == 0) return a; else NARROW_FOUR(vshrq_n_u32(a.v[i], kCount));
}
inline I shift_right_signed(const I& a, const I& count) {
  I result;
  NARROW_FOUR(vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a.v[i]), vnegq_s32(vreinterpretq_s32_u32(count.v[i])))));
}
inline I bit_and(const I& a, const I& b) { I result; NARROW_FOUR(vandq_u32(a.v[i], b.v[i])); }
/// (a & b) | c
inline I and_or(const I& a, const I& b, const I& c) { I result; NARROW_FOUR(vorrq_u32(vandq_u32(a.v[i], b.v[i]), c.v[i])); }
inline I larger(const I& a, const I& b) { I result; NARROW_FOUR(vmaxq_u32(a.v[i], b.v[i])); }
inline F as_float(const I& a) { F result; NARROW_FOUR(vreinterpretq_f32_u32(a.v[i])); }
/// (a << 2) | (b >> 30)
inline I append_top_bits(const I& a, const I& b) { I result; NARROW_FOUR(vsriq_n_u32(vshlq_n_u32(a.v[i], 2), b.v[i], 30)); }
inline I widen_words(const std::uint16_t* p) { I result; NARROW_FOUR(vmovl_u16(vld1_u16(p + 4 * i))); }
inline I widen_bytes(const std::uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  return {{vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)}};
}
inline F to_float(const I& a) { F result; NARROW_FOUR(vcvtq_f32_s32(vreinterpretq_s32_u32(a.v[i]))); }

/// 32 values, looked up by the low 4 or 5 bits of a lane: 64 bytes are one TBL of four registers.
struct Table {
  uint8x16x4_t low, high;
};
inline Table load_table(const float* p) {
  Table table;
  for (int i = 0; i < 4; ++i) {
    table.low.val[i] = vreinterpretq_u8_f32(vld1q_f32(p + 4 * i));
    table.high.val[i] = vreinterpretq_u8_f32(vld1q_f32(p + 16 + 4 * i));
  }
  return table;
}
/// Byte indices 4c, 4c + 1, 4c + 2, 4c + 3 of code c in every lane.
inline uint8x16_t byte_indices(uint32x4_t index, std::uint32_t mask) {
  return vreinterpretq_u8_u32(vaddq_u32(vmulq_n_u32(vandq_u32(index, vdupq_n_u32(mask)), 0x04040404u), vdupq_n_u32(0x03020100u)));
}
inline F look_up16(const I& index, const Table& table) { F result; NARROW_FOUR(vreinterpretq_f32_u8(vqtbl4q_u8(table.low, byte_indices(index.v[i], 15)))); }
inline F look_up32(const I& index, const Table& table) {
  F result;
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bytes = byte_indices(index.v[i], 31);
    const uint8x16_t low = vqtbl4q_u8(table.low, bytes);  // zero beyond 63
    result.v[i] = vreinterpretq_f32_u8(vqtbx4q_u8(low, table.high, vsubq_u8(bytes, vdupq_n_u8(64))));
  }
  return result;
}

// ---- integer dot products: unsigned weights, signed activations ----

constexpr int kDotRows = 4;
#if defined(NARROW_DOT_SDOT)
constexpr std::uint32_t kDotOffset = 128;  // SDOT takes signed weights
#else
constexpr std::uint32_t kDotOffset = 0;
#endif
using DotWeight = I;
struct DotActivation {
  int8x16_t bytes;
};
inline DotWeight dot_weight(const I& lanes) {
#if defined(NARROW_DOT_SDOT)
  I result;
  NARROW_FOUR(veorq_u32(lanes.v[i], vdupq_n_u32(0x80808080u)));
#else
  return lanes;
#endif
}
inline DotActivation dot_activation(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {vreinterpretq_s8_s32(vdupq_n_s32(word))};
}
inline I dot(const I& sum, const DotWeight& w, const DotActivation& x) {
  I result;
  for (int i = 0; i < 4; ++i) {
    const int32x4_t s = vreinterpretq_s32_u32(sum.v[i]);
#if defined(NARROW_DOT_USDOT)
    result.v[i] = vreinterpretq_u32_s32(vusdotq_s32(s, vreinterpretq_u8_u32(w.v[i]), x.bytes));
#elif defined(NARROW_DOT_SDOT)
    result.v[i] = vreinterpretq_u32_s32(vdotq_s32(s, vreinterpretq_s8_u32(w.v[i]), x.bytes));
#else
    const uint8x16_t u = vreinterpretq_u8_u32(w.v[i]);
    const int16x8_t w_low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u))), w_high = vreinterpretq_s16_u16(vmovl_high_u8(u));
    const int16x8_t x_low = vmovl_s8(vget_low_s8(x.bytes)), x_high = vmovl_high_s8(x.bytes);
    const int32x4_t a = vpaddq_s32(vmull_s16(vget_low_s16(w_low), vget_low_s16(x_low)), vmull_high_s16(w_low, x_low));
    const int32x4_t b = vpaddq_s32(vmull_s16(vget_low_s16(w_high), vget_low_s16(x_high)), vmull_high_s16(w_high, x_high));
    result.v[i] = vreinterpretq_u32_s32(vaddq_s32(s, vpaddq_s32(a, b)));
#endif
  }
  return result;
}
/// sum - w * x
inline I minus_product(const I& sum, const I& w, std::int32_t x) { I result; NARROW_FOUR(vmlsq_u32(sum.v[i], w.v[i], vdupq_n_u32(static_cast<std::uint32_t>(x)))); }
