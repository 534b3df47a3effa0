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

/// Where the low bytes of 32 lanes lie in two vectors.
struct LowBytes {
  alignas(64) std::uint8_t at[64];
  constexpr LowBytes() : at{} {
    for (int i = 0; i < 64; ++i) at[i] = static_cast<std::uint8_t>(4 * (i % 32));
  }
};
constexpr LowBytes kLowBytes;

inline void write_codes(std::uint8_t* to, const VU (&codes)[4], bool around_caches) {
  const __m512i low = _mm512_load_si512(kLowBytes.at);
  const __m512i first = _mm512_permutex2var_epi8((__m512i)codes[0], low, (__m512i)codes[1]);
  const __m512i second = _mm512_permutex2var_epi8((__m512i)codes[2], low, (__m512i)codes[3]);
  const __m512i all = _mm512_inserti64x4(first, _mm512_castsi512_si256(second), 1);
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
