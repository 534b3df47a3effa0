// 16 lanes of 32 bits in four NEON registers: what the generic bodies of matmul are written in. Included in the leaf's namespace.
// A leaf includes its dot product after it: dot_widening.inl, dot_sdot.inl or dot_usdot.inl.

struct F {
  float32x4_t v[4];
};
struct I {
  uint32x4_t v[4];
};

constexpr int kGemvParts = 2;
constexpr int kGemvSums = 4;    // rows x parts at most, two sums each
constexpr int kCheapTable = 0;  // values of a cheap look-up
constexpr int kTileParts = 1;   // of a register tile: 6 x 16 sums, 24 of 32 registers
constexpr int kTileRows = 6;

/// A vector of four registers, the i-th of them work(i).
template <typename V, typename Work>
[[gnu::always_inline]] inline V four(const Work& work) {
  V result;
  for (int i = 0; i < 4; ++i) result.v[i] = work(i);
  return result;
}

inline F load(const float* p) {
  return four<F>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const F& a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
inline I load_lanes(const void* p) {
  return four<I>([&](int i) { return vld1q_u32(static_cast<const std::uint32_t*>(p) + 4 * i); });
}
inline const I& in_register(const I& a) { return a; }
inline I load_and_fetch(const void* p, const void* line) {
  __builtin_prefetch(line, 0, 2);
  return load_lanes(p);
}
inline void store_lanes(void* p, const I& a) {
  for (int i = 0; i < 4; ++i) vst1q_u32(static_cast<std::uint32_t*>(p) + 4 * i, a.v[i]);
}
inline F set(float x) {
  return four<F>([&](int) { return vdupq_n_f32(x); });
}
inline F broadcast(const float* p) { return set(*p); }
inline I set_lanes(std::uint32_t x) {
  return four<I>([&](int) { return vdupq_n_u32(x); });
}
inline F fma(const F& a, const F& b, const F& c) {
  return four<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F plus(const F& a, const F& b) {
  return four<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F mul(const F& a, const F& b) {
  return four<F>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F sub(const F& a, const F& b) {
  return four<F>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
template <int kCount>
inline I shift_left(const I& a) {
  if constexpr (kCount == 0)
    return a;
  else
    return four<I>([&](int i) { return vshlq_n_u32(a.v[i], kCount); });
}
template <int kCount>
inline I shift_right(const I& a) {
  if constexpr (kCount == 0)
    return a;
  else
    return four<I>([&](int i) { return vshrq_n_u32(a.v[i], kCount); });
}
inline I shift_right_signed(const I& a, const I& count) {
  return four<I>(
      [&](int i) { return vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a.v[i]), vnegq_s32(vreinterpretq_s32_u32(count.v[i])))); });
}
inline I bit_and(const I& a, const I& b) {
  return four<I>([&](int i) { return vandq_u32(a.v[i], b.v[i]); });
}
/// (a & b) | c
inline I and_or(const I& a, const I& b, const I& c) {
  return four<I>([&](int i) { return vorrq_u32(vandq_u32(a.v[i], b.v[i]), c.v[i]); });
}
/// a ^ b ^ c
inline I odd_bits(const I& a, const I& b, const I& c) {
  return four<I>([&](int i) { return veorq_u32(veorq_u32(a.v[i], b.v[i]), c.v[i]); });
}
inline I larger(const I& a, const I& b) {
  return four<I>([&](int i) { return vmaxq_u32(a.v[i], b.v[i]); });
}
inline F as_float(const I& a) {
  return four<F>([&](int i) { return vreinterpretq_f32_u32(a.v[i]); });
}
inline I widen_words(const std::uint16_t* p) {
  return four<I>([&](int i) { return vmovl_u16(vld1_u16(p + 4 * i)); });
}
inline I widen_bytes(const std::uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  return {{vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)}};
}
/// The same at the top of lanes.
inline I top_bytes(const std::uint8_t* p) { return shift_left<24>(widen_bytes(p)); }
/// Rounded to nearest, ties to even.
inline I to_whole(const F& a) {
  return four<I>([&](int i) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(a.v[i])); });
}
inline F to_float(const I& a) {
  return four<F>([&](int i) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a.v[i])); });
}

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
inline Table load_table16(const float* p) {
  Table table{};
  for (int i = 0; i < 4; ++i) table.low.val[i] = vreinterpretq_u8_f32(vld1q_f32(p + 4 * i));
  return table;
}
/// Byte indices 4c, 4c + 1, 4c + 2, 4c + 3 of code c in every lane.
inline uint8x16_t byte_indices(uint32x4_t index, std::uint32_t mask) {
  return vreinterpretq_u8_u32(vaddq_u32(vmulq_n_u32(vandq_u32(index, vdupq_n_u32(mask)), 0x04040404u), vdupq_n_u32(0x03020100u)));
}
inline F look_up8(const I& index, const Table& table) {
  const uint8x16x2_t low{{table.low.val[0], table.low.val[1]}};
  return four<F>([&](int i) { return vreinterpretq_f32_u8(vqtbl2q_u8(low, byte_indices(index.v[i], 7))); });
}
inline F look_up16(const I& index, const Table& table) {
  return four<F>([&](int i) { return vreinterpretq_f32_u8(vqtbl4q_u8(table.low, byte_indices(index.v[i], 15))); });
}
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
constexpr int kDotBytes = 1;  // of a packed activation
constexpr bool kByteRow = false;
constexpr bool kByteSums = false;
constexpr int kSegmentParts = 0;
using DotWeight = I;
struct DotActivation {
  int8x16_t bytes;
};
inline DotActivation dot_activation(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {vreinterpretq_s8_s32(vdupq_n_s32(word))};
}
/// sum - w * x
inline I minus_product(const I& sum, const I& w, std::int32_t x) {
  return four<I>([&](int i) { return vmlsq_u32(sum.v[i], w.v[i], vdupq_n_u32(static_cast<std::uint32_t>(x))); });
}
