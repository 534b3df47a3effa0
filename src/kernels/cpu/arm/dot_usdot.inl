// USDOT takes unsigned weights and signed activations as they are.

constexpr bool kDigitRows = false;
constexpr cpu::MatmulPack kFloatPack = cpu::float_pack;
constexpr std::uint32_t kDotOffset = 0;
inline DotWeight dot_weight(const I& lanes) { return lanes; }
inline I dot(const I& sum, const DotWeight& w, const DotActivation& x) {
  return four<I>(
      [&](int i) { return vreinterpretq_u32_s32(vusdotq_s32(vreinterpretq_s32_u32(sum.v[i]), vreinterpretq_u8_u32(w.v[i]), x.bytes)); });
}
