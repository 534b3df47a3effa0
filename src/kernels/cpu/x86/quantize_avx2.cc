/// Quantize and dequantize for AVX2 (with F16C): eight lanes.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

inline VU load_codes(const std::uint8_t* from) { return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))); }
inline VU load_codes(const std::uint16_t* from) {
  return (VU)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
/// Codes fit into 16 bits, so that packing with unsigned saturation keeps them.
inline void store_codes(std::uint16_t* to, VU codes) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)codes), _mm256_extracti128_si256((__m256i)codes, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}
inline void store_codes(std::uint8_t* to, VU codes) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)codes), _mm256_extracti128_si256((__m256i)codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
/// The low byte of every 16-bit lane, side by side.
inline void store_low_bytes(std::uint8_t* to, VWords words) {
  const __m256i low = (__m256i)(words & std::uint16_t{0xFF});
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline VF widen_bf16(const std::uint16_t* from) { return as_float(load_codes(from) << 16); }
inline VHalf widen_bytes(const std::uint8_t* from) {
  return (VHalf)_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
inline VF widen_half(VHalf half) { return (VF)_mm256_cvtph_ps((__m128i)half); }
inline VF widen_fp16(const std::uint16_t* from) { return (VF)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#include "kernels/cpu/x86/bytes_avx2.inl"

struct Table {
  VF low, high;
};
inline Table make_table(const float* values) { return {load<VF>(values), load<VF>(values + 8)}; }
inline VF look_up(const Table& table, VU code) {
  const __m256 low = _mm256_permutevar8x32_ps((__m256)table.low, (__m256i)code),
               high = _mm256_permutevar8x32_ps((__m256)table.high, (__m256i)code);
  return (VF)_mm256_blendv_ps(low, high, (__m256)(code << 28));  // by bit 3 of the code
}

inline std::int32_t highest_lane(VI value) {
  __m128i highest = _mm_max_epi32(_mm256_castsi256_si128((__m256i)value), _mm256_extracti128_si256((__m256i)value, 1));
  highest = _mm_max_epi32(highest, _mm_shuffle_epi32(highest, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(highest, _mm_shuffle_epi32(highest, 0xB1)));
}

/// Eight vectors to the one vector of their maxima: three levels, each halving vectors and lanes.
[[gnu::always_inline]] inline VI max_of_each(const VI (&each)[8]) {
  const auto v = [&](int i) { return (__m256i)each[i]; };
  __m256i four[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i a = _mm256_max_epi32(_mm256_unpacklo_epi32(v(4 * i), v(4 * i + 1)), _mm256_unpackhi_epi32(v(4 * i), v(4 * i + 1)));
    const __m256i b =
        _mm256_max_epi32(_mm256_unpacklo_epi32(v(4 * i + 2), v(4 * i + 3)), _mm256_unpackhi_epi32(v(4 * i + 2), v(4 * i + 3)));
    four[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  return (VI)_mm256_max_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20), _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

#include "kernels/cpu/quantize/portable.inl"

#include "kernels/cpu/quantize/leaf.inl"

}  // namespace

extern const QuantizeKernel kAvx2Quantize;
extern const DequantizeKernel kAvx2Dequantize;
constinit const QuantizeKernel kAvx2Quantize{"avx2_quantize", Isa::kAvx2, accepts_quantize, measure_tile, run_quantize};
constinit const DequantizeKernel kAvx2Dequantize{"avx2_dequantize", Isa::kAvx2, accepts_dequantize, run_dequantize};

}  // namespace narrow::cpu
