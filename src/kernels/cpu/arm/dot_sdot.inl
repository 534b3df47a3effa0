// SDOT takes signed weights: the stored unsigned ones less 128.

constexpr bool kDigitRows = true;  // arm/digits_sdot.inl: one row of fp32 and codes of 2 to 4 bits, or int8
constexpr std::uint32_t kDotOffset = 128;
inline DotWeight dot_weight(const I& lanes) {
  return four<I>([&](int i) { return veorq_u32(lanes.v[i], vdupq_n_u32(0x80808080u)); });
}
inline I dot(const I& sum, const DotWeight& w, const DotActivation& x) {
  return four<I>(
      [&](int i) { return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum.v[i]), vreinterpretq_s8_u32(w.v[i]), x.bytes)); });
}
