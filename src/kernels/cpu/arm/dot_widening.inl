// Widening multiplications: every AArch64 has them.

constexpr bool kDigitRows = false;
constexpr cpu::MatmulPack kFloatPack = cpu::float_pack;
constexpr std::uint32_t kDotOffset = 0;
inline DotWeight dot_weight(const I& lanes) { return lanes; }
inline I dot(const I& sum, const DotWeight& w, const DotActivation& x) {
  return four<I>([&](int i) {
    const uint8x16_t u = vreinterpretq_u8_u32(w.v[i]);
    const int16x8_t w_low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u))), w_high = vreinterpretq_s16_u16(vmovl_high_u8(u));
    const int16x8_t x_low = vmovl_s8(vget_low_s8(x.bytes)), x_high = vmovl_high_s8(x.bytes);
    const int32x4_t a = vpaddq_s32(vmull_s16(vget_low_s16(w_low), vget_low_s16(x_low)), vmull_high_s16(w_low, x_low));
    const int32x4_t b = vpaddq_s32(vmull_s16(vget_low_s16(w_high), vget_low_s16(x_high)), vmull_high_s16(w_high, x_high));
    return vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_u32(sum.v[i]), vpaddq_s32(a, b)));
  });
}
