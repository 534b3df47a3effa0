// AVX-512: 16 lanes. The masked forms of intrinsics keep g++ 12 from warning about its own undefined operand.
#include <immintrin.h>

#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"

namespace narrow::cpu::avx512_fused {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

inline VF widen_half(VHalf half) { return (VF)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)half); }
inline VHalf narrow_half(VF value) { return (VHalf)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx512_fused", Isa::kAvx512, fused_accepts, fused_run};

}  // namespace narrow::cpu::avx512_fused
