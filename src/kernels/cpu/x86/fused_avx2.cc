// AVX2: 8 lanes.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"
#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu::avx2_fused {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

#include "kernels/cpu/quantize/encode.inl"

inline VF widen_half(VHalf half) { return (VF)_mm256_cvtph_ps((__m128i)half); }
inline VHalf narrow_half(VF value) { return (VHalf)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline VU widen_bits(VHalf half) { return (VU)_mm256_cvtepu16_epi32((__m128i)half); }
inline VHalf narrow_bits(VU lanes) { return __builtin_convertvector(lanes, VHalf); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

/// 32 codes: the packs work within 128-bit halves, one permutation puts the 32-bit groups in order.
inline __m256i pack_codes(const VU* codes) {
  const __m256i low = _mm256_set1_epi32(255);
  const auto part = [&](int i) { return _mm256_and_si256((__m256i)codes[i], low); };
  const __m256i words = _mm256_packus_epi16(_mm256_packus_epi32(part(0), part(1)), _mm256_packus_epi32(part(2), part(3)));
  return _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline void write_codes(std::uint8_t* to, const VU (&codes)[8], bool around_caches) {
  for (int half = 0; half < 2; ++half) {
    const __m256i bytes = pack_codes(codes + 4 * half);
    auto* place = reinterpret_cast<__m256i*>(to + 32 * half);
    if (around_caches && reinterpret_cast<std::uintptr_t>(to) % 64 == 0) {
      _mm256_stream_si256(place, bytes);
    } else {
      _mm256_storeu_si256(place, bytes);
    }
  }
}
void fence() { _mm_sfence(); }

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx2_fused", Isa::kAvx2, fused_accepts, fused_run, fused_quantize_row, fence};

}  // namespace narrow::cpu::avx2_fused
