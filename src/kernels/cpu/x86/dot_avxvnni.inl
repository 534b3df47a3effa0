// The integer dot product of AVX-VNNI: unsigned weights, signed activations, four k a lane, as they lie. Included in a leaf's namespace
// after vec_avx2.inl.

constexpr int kDotRows = 6;   // x 16 sums: 12 of 16 registers, 2 hold weights, one an activation
constexpr int kDotBytes = 1;  // of a packed activation
constexpr bool kDigitRows = false;
constexpr cpu::MatmulPack kFloatPack = cpu::float_pack;
using DotWeight = I;
using DotActivation = __m256i;
inline DotWeight dot_weight(I lanes) { return lanes; }
inline DotActivation dot_activation(const std::int8_t* p) { return broadcast_word(p); }
inline I dot(I sum, const DotWeight& w, const DotActivation& x) {
  for (int h = 0; h < 2; ++h) sum.v[h] = _mm256_dpbusd_avx_epi32(sum.v[h], w.v[h], x);
  asm volatile("" : "+x"(sum.v[0]), "+x"(sum.v[1]));  // in this order: compilers make many products first, and spill them
  return sum;
}
