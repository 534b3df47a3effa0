/// Quantize and dequantize for AVX-512 (F, BW, DQ, VL, VBMI): sixteen lanes.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

inline VU load_codes(const std::uint8_t* from) { return (VU)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline VU load_codes(const std::uint16_t* from) {
  return (VU)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_codes(std::uint8_t* to, VU codes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)codes));
}
inline void store_codes(std::uint16_t* to, VU codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16((__m512i)codes));
}
/// The low byte of every 16-bit lane, side by side.
inline void store_low_bytes(std::uint8_t* to, VWords words) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8((__m512i)words));
}
inline VF widen_bf16(const std::uint16_t* from) { return as_float(load_codes(from) << 16); }
inline VHalf widen_bytes(const std::uint8_t* from) {
  return (VHalf)_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline VF widen_half(VHalf half) { return (VF)_mm512_cvtph_ps((__m256i)half); }
inline VF widen_fp16(const std::uint16_t* from) { return (VF)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#include "kernels/cpu/x86/bytes_avx512.inl"

struct Table {
  VF values;
};
inline Table make_table(const float* values) { return {load<VF>(values)}; }
inline VF look_up(const Table& table, VU code) { return (VF)_mm512_permutexvar_ps((__m512i)code, (__m512)table.values); }

// The masked forms of intrinsics keep g++ 12 from warning about its own undefined operand.

inline std::int32_t highest_lane(VI value) {
  const __m512i v = (__m512i)value;
  const __m256i half = _mm256_max_epi32(_mm512_maskz_extracti64x4_epi64(0xF, v, 0), _mm512_maskz_extracti64x4_epi64(0xF, v, 1));
  __m128i highest = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  highest = _mm_max_epi32(highest, _mm_shuffle_epi32(highest, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(highest, _mm_shuffle_epi32(highest, 0xB1)));
}

/// Sixteen vectors to the one vector of their maxima: four levels, each halving vectors and lanes.
[[gnu::always_inline]] inline VI max_of_each(const VI (&each)[16]) {
  const auto fold32 = [](VI a, VI b) {
    return larger((VI)_mm512_maskz_unpacklo_epi32(0xFFFF, (__m512i)a, (__m512i)b),
                  (VI)_mm512_maskz_unpackhi_epi32(0xFFFF, (__m512i)a, (__m512i)b));
  };
  const auto fold64 = [](VI a, VI b) {
    return larger((VI)_mm512_maskz_unpacklo_epi64(0xFF, (__m512i)a, (__m512i)b),
                  (VI)_mm512_maskz_unpackhi_epi64(0xFF, (__m512i)a, (__m512i)b));
  };
  const auto fold128 = [](VI a, VI b) {
    return larger((VI)_mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)a, (__m512i)b, 0x88),
                  (VI)_mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)a, (__m512i)b, 0xDD));
  };
  VI four[4];
  for (int i = 0; i < 4; ++i) four[i] = fold64(fold32(each[4 * i], each[4 * i + 1]), fold32(each[4 * i + 2], each[4 * i + 3]));
  return fold128(fold128(four[0], four[1]), fold128(four[2], four[3]));
}

/// The low kBytes bytes of every 64-bit lane, side by side in memory: one byte permutation.
template <int kBytes>
struct LowBytes {
  struct Indices {
    alignas(64) std::uint8_t together[64], apart[64];
  };
  static constexpr Indices kIndices = [] {
    Indices indices{};
    for (int i = 0; i < 64; ++i) {
      indices.together[i] = static_cast<std::uint8_t>((i / kBytes * 8 + i % kBytes) & 63);
      indices.apart[i] = static_cast<std::uint8_t>((i / 8 * kBytes + i % 8) & 63);
    }
    return indices;
  }();
  void store(std::uint8_t* to, VL words) const {
    _mm512_storeu_si512(to, _mm512_permutexvar_epi8(_mm512_load_si512(kIndices.together), (__m512i)words));
  }
  VL load(const std::uint8_t* from) const {
    return (VL)_mm512_permutexvar_epi8(_mm512_load_si512(kIndices.apart), _mm512_loadu_si512(from));
  }
};

#include "kernels/cpu/quantize/leaf.inl"

}  // namespace

extern const QuantizeKernel kAvx512Quantize;
extern const DequantizeKernel kAvx512Dequantize;
constinit const QuantizeKernel kAvx512Quantize{"avx512_quantize", Isa::kAvx512, accepts_quantize, measure_tile, run_quantize};
constinit const DequantizeKernel kAvx512Dequantize{"avx512_dequantize", Isa::kAvx512, accepts_dequantize, run_dequantize};

}  // namespace narrow::cpu
