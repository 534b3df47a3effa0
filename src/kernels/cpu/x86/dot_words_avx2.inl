// The integer dot product of plain AVX2. vpmaddubsw would saturate (2 * 255 * 127 > 32767), so bytes meet words (PackedRows::kWords), even
// and odd ones apart. Codes of at most 4 bits do not need that: code_tile_avx2.inl. Included in a leaf's namespace after vec_avx2.inl.

constexpr int kDotRows = 4;        // x 16 sums: 8 of 16 registers, 4 hold weights
constexpr int kDotBytes = 2;       // of a packed activation
constexpr bool kDigitRows = true;  // x86/digits_avx2.inl: one row of fp32 and codes of 2 to 4 bits, or int8
struct DotWeight {
  I even, odd;
};
struct DotActivation {
  __m256i even, odd;
};
inline DotWeight dot_weight(I lanes) {
  const __m256i low = _mm256_set1_epi16(0xFF);
  return {{{_mm256_and_si256(lanes.v[0], low), _mm256_and_si256(lanes.v[1], low)}},
          {{_mm256_srli_epi16(lanes.v[0], 8), _mm256_srli_epi16(lanes.v[1], 8)}}};
}
inline DotActivation dot_activation(const std::int8_t* p) { return {broadcast_word(p), broadcast_word(p + 4)}; }
inline I dot(I sum, const DotWeight& w, const DotActivation& x) {
  for (int h = 0; h < 2; ++h)
    sum.v[h] = _mm256_add_epi32(_mm256_add_epi32(sum.v[h], _mm256_madd_epi16(w.even.v[h], x.even)), _mm256_madd_epi16(w.odd.v[h], x.odd));
  asm volatile("" : "+x"(sum.v[0]), "+x"(sum.v[1]));  // in this order: compilers make many products first, and spill them
  return sum;
}
