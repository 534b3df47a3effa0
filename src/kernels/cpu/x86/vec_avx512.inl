// 16 lanes of 32 bits in one AVX-512 register: what the generic bodies of matmul are written in. Included in the leaf's namespace.

using F = __m512;
using I = __m512i;

constexpr int kGemvParts = 4;    // of 16 outputs at once: independent sums hide the latency of an FMA
constexpr int kGemvSums = 8;     // rows x parts at most, two sums each
constexpr int kCheapTable = 16;  // values of a cheap look-up
constexpr int kTileParts = 4;    // of a register tile: 6 x 64 sums, 24 of 32 registers
constexpr int kTileRows = 6;

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline I load_lanes(const void* p) { return _mm512_loadu_si512(p); }
/// Keeps a loaded vector from being loaded again for every shift of it.
inline I in_register(I v) {
  asm("" : "+v"(v));
  return v;
}
/// Loads a vector and fetches a line into the second-level cache. The fetch stays where it is: compilers would gather those of a loop's
/// body, and most of a burst is dropped.
inline I load_and_fetch(const void* p, const void* line) {
  I lanes = load_lanes(p);
  asm volatile("prefetcht1 %1" : "+v"(lanes) : "m"(*static_cast<const char*>(line)));
  return lanes;
}
inline void store_lanes(void* p, I v) { _mm512_storeu_si512(p, v); }
inline F broadcast(const float* p) { return _mm512_set1_ps(*p); }
inline F set(float v) { return _mm512_set1_ps(v); }
inline I set_lanes(std::uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F plus(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
template <int kCount>
inline I shift_left(I v) {
  if constexpr (kCount == 0)
    return v;
  else
    return _mm512_slli_epi32(v, kCount);
}
template <int kCount>
inline I shift_right(I v) {
  if constexpr (kCount == 0)
    return v;
  else
    return _mm512_srli_epi32(v, kCount);
}
inline I shift_right_signed(I v, I count) { return _mm512_srav_epi32(v, count); }
inline I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
/// (a & b) | c
inline I and_or(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0xEA); }
/// a ^ b ^ c
inline I odd_bits(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
inline I larger(I a, I b) { return _mm512_max_epu32(a, b); }
inline F as_float(I v) { return _mm512_castsi512_ps(v); }
inline I widen_bytes(const std::uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
/// The same at the top of lanes.
inline I top_bytes(const std::uint8_t* p) {
  const I from = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 24);
  const I bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_maskz_permutexvar_epi8(0x8888888888888888u, from, bytes);
}
inline I widen_words(const std::uint16_t* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline F to_float(I v) { return _mm512_cvtepi32_ps(v); }

/// 32 values, looked up by the low 4 or 5 bits of a lane.
struct Table {
  F low, high;
};
inline Table load_table(const float* p) { return {load(p), load(p + 16)}; }
inline Table load_table16(const float* p) { return {load(p), F{}}; }
inline F look_up8(I index, const Table& table) { return _mm512_permutexvar_ps(index, table.low); }
inline F look_up16(I index, const Table& table) { return _mm512_permutexvar_ps(index, table.low); }
inline F look_up32(I index, const Table& table) { return _mm512_permutex2var_ps(table.low, index, table.high); }

// ---- integer dot products ----

constexpr int kDotRows = 6;
constexpr int kDotBytes = 1;             // of a packed activation
constexpr bool kDigitRows = true;        // x86/digits.inl: one row and codes of 3 or 4 bits, or int8
constexpr bool kByteRow = true;          // x86/byte_row.inl: one row and 8-bit floats
constexpr bool kByteSums = true;         // x86/byte_sums.inl: one row and codes of 1 or 2 bits
constexpr int kSegmentParts = 2;         // of 16 outputs whose sums and values along k stay in registers
constexpr std::uint32_t kDotOffset = 0;  // subtracted from weights before the product
using DotWeight = I;                     // 16 x 4 unsigned bytes
using DotActivation = I;                 // 4 signed bytes, in every lane
inline DotWeight dot_weight(I lanes) { return lanes; }
inline DotActivation dot_activation(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
inline I dot(I sum, DotWeight w, DotActivation x) { return _mm512_dpbusd_epi32(sum, w, x); }
/// sum - w * x
inline I minus_product(I sum, I w, std::int32_t x) { return _mm512_sub_epi32(sum, _mm512_mullo_epi32(w, _mm512_set1_epi32(x))); }
