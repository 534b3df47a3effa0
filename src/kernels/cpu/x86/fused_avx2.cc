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
inline VF widen_bf16(VHalf half) { return as_float((VU)_mm256_cvtepu16_epi32((__m128i)half) << 16); }
inline VHalf narrow_bits(VU lanes) { return __builtin_convertvector(lanes, VHalf); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

#include "kernels/cpu/x86/bytes_avx2.inl"

#include "kernels/cpu/quantize/run_codes.inl"

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx2_fused", Isa::kAvx2, fused_accepts, fused_run, fused_quantize_rows, fence};

}  // namespace narrow::cpu::avx2_fused
