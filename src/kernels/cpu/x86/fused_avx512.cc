// AVX-512: 16 lanes. The masked forms of intrinsics keep g++ 12 from warning about its own undefined operand.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"
#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu::avx512_fused {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

#include "kernels/cpu/quantize/encode.inl"

inline VF widen_half(VHalf half) { return (VF)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)half); }
inline VHalf narrow_half(VF value) { return (VHalf)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline VU widen_bits(VHalf half) { return (VU)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)half); }
inline VHalf narrow_bits(VU lanes) { return (VHalf)_mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)lanes); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline VF subtract_product(VF a, VF b, VF c) { return (VF)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }

inline void write_codes(std::uint8_t* to, const VU (&codes)[4], bool around_caches) {
  __m512i all = _mm512_castsi128_si512(_mm512_cvtepi32_epi8((__m512i)codes[0]));
  all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8((__m512i)codes[1]), 1);
  all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8((__m512i)codes[2]), 2);
  all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8((__m512i)codes[3]), 3);
  if (around_caches && reinterpret_cast<std::uintptr_t>(to) % 64 == 0) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), all);
  } else {
    _mm512_storeu_si512(to, all);
  }
}
void fence() { _mm_sfence(); }

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx512_fused", Isa::kAvx512, fused_accepts, fused_run, fused_quantize_row, fence};

}  // namespace narrow::cpu::avx512_fused
