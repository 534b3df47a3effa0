// 16 lanes of 32 bits in two AVX2 registers: what the generic bodies of matmul are written in. Included in the leaf's namespace.

struct F {
  __m256 v[2];
};
struct I {
  __m256i v[2];
};

constexpr int kGemvParts = 2;
constexpr int kGemvSums = 4;    // rows x parts at most, two sums each
constexpr int kCheapTable = 8;  // values of a cheap look-up
constexpr int kTileParts = 1;   // of a register tile: 6 x 16 sums, 12 of 16 registers
constexpr int kTileRows = 6;

inline F load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void store(float* p, F a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
inline I load_lanes(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {{_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)}};
}
inline const I& in_register(const I& a) { return a; }
/// Loads a vector and fetches a line into the second-level cache. The fetch stays where it is: compilers would gather those of a loop's
/// body, and most of a burst is dropped.
inline I load_and_fetch(const void* p, const void* line) {
  I lanes = load_lanes(p);
  asm volatile("prefetcht1 %1" : "+x"(lanes.v[0]) : "m"(*static_cast<const char*>(line)));
  return lanes;
}
inline void store_lanes(void* p, I a) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.v[0]);
  _mm256_storeu_si256(q + 1, a.v[1]);
}
inline F set(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline F broadcast(const float* p) { return set(*p); }
inline I set_lanes(std::uint32_t x) { return {{_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))}}; }
inline F fma(F a, F b, F c) { return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}}; }
inline F mul(F a, F b) { return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}}; }
inline F plus(F a, F b) { return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}}; }
inline F sub(F a, F b) { return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}}; }
template <int kCount>
inline I shift_left(I a) {
  if constexpr (kCount == 0)
    return a;
  else
    return {{_mm256_slli_epi32(a.v[0], kCount), _mm256_slli_epi32(a.v[1], kCount)}};
}
template <int kCount>
inline I shift_right(I a) {
  if constexpr (kCount == 0)
    return a;
  else
    return {{_mm256_srli_epi32(a.v[0], kCount), _mm256_srli_epi32(a.v[1], kCount)}};
}
inline I shift_right_signed(I a, I count) { return {{_mm256_srav_epi32(a.v[0], count.v[0]), _mm256_srav_epi32(a.v[1], count.v[1])}}; }
inline I bit_and(I a, I b) { return {{_mm256_and_si256(a.v[0], b.v[0]), _mm256_and_si256(a.v[1], b.v[1])}}; }
/// (a & b) | c
inline I and_or(I a, I b, I c) {
  const I both = bit_and(a, b);
  return {{_mm256_or_si256(both.v[0], c.v[0]), _mm256_or_si256(both.v[1], c.v[1])}};
}
/// a ^ b ^ c
inline I odd_bits(I a, I b, I c) {
  for (int h = 0; h < 2; ++h) a.v[h] = _mm256_xor_si256(_mm256_xor_si256(a.v[h], b.v[h]), c.v[h]);
  return a;
}
inline I larger(I a, I b) { return {{_mm256_max_epu32(a.v[0], b.v[0]), _mm256_max_epu32(a.v[1], b.v[1])}}; }
inline F as_float(I a) { return {{_mm256_castsi256_ps(a.v[0]), _mm256_castsi256_ps(a.v[1])}}; }
inline I widen_bytes(const std::uint8_t* p) {
  return {{_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
           _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))}};
}
/// The same at the top of lanes.
inline I top_bytes(const std::uint8_t* p) { return shift_left<24>(widen_bytes(p)); }
inline I widen_words(const std::uint16_t* p) {
  return {{_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
           _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))}};
}
/// Rounded to nearest, ties to even.
inline I to_whole(F a) { return {{_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1])}}; }
inline F to_float(I a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }

/// 32 values, looked up by the low 4 or 5 bits of a lane: eight at a time, the next bits choose among the eights.
struct Table {
  __m256 part[4];
};
inline Table load_table(const float* p) {
  return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), _mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)}};
}
inline Table load_table16(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), __m256{}, __m256{}}}; }
inline __m256 look_up_half(__m256i index, const __m256* part) {
  const __m256 low = _mm256_permutevar8x32_ps(part[0], index), high = _mm256_permutevar8x32_ps(part[1], index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
inline F look_up8(I index, const Table& table) {
  return {{_mm256_permutevar8x32_ps(table.part[0], index.v[0]), _mm256_permutevar8x32_ps(table.part[0], index.v[1])}};
}
inline F look_up16(I index, const Table& table) { return {{look_up_half(index.v[0], table.part), look_up_half(index.v[1], table.part)}}; }
inline F look_up32(I index, const Table& table) {
  F result;
  for (int h = 0; h < 2; ++h)
    result.v[h] = _mm256_blendv_ps(look_up_half(index.v[h], table.part), look_up_half(index.v[h], table.part + 2),
                                   _mm256_castsi256_ps(_mm256_slli_epi32(index.v[h], 27)));
  return result;
}

// ---- integer dot products: dot_words_avx2.inl, dot_avxvnni.inl ----

constexpr bool kByteRow = false;
constexpr bool kByteSums = false;
constexpr int kSegmentParts = 0;
constexpr std::uint32_t kDotOffset = 0;  // subtracted from weights before the product
inline __m256i broadcast_word(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
/// sum - w * x
inline I minus_product(I sum, I w, std::int32_t x) {
  for (int h = 0; h < 2; ++h) sum.v[h] = _mm256_sub_epi32(sum.v[h], _mm256_mullo_epi32(w.v[h], _mm256_set1_epi32(x)));
  return sum;
}
