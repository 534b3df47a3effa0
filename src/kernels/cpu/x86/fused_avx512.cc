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
inline VHalf narrow_half(VF value) {
  return (VHalf)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// Where the words of a half lie in the upper words of lanes.
struct UpperWords {
  alignas(64) std::uint16_t at[32];
  constexpr UpperWords() : at{} {
    for (int i = 0; i < 32; ++i) at[i] = static_cast<std::uint16_t>(i / 2);
  }
};
constexpr UpperWords kUpperWords;
/// One permutation instead of a widening and a shift.
inline VF widen_bf16(VHalf half) {
  return (VF)_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, _mm512_load_si512(kUpperWords.at), _mm512_castsi256_si512((__m256i)half));
}
inline VHalf narrow_bits(VU lanes) { return (VHalf)_mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)lanes); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

#include "kernels/cpu/x86/bytes_avx512.inl"

#include "kernels/cpu/quantize/run_codes.inl"

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx512_fused", Isa::kAvx512, fused_accepts, fused_run, fused_quantize_rows, fence};

}  // namespace narrow::cpu::avx512_fused
