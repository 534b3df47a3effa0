// AVX2: 8 lanes.
#include <immintrin.h>

#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"

namespace narrow::cpu::avx2_fused {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

inline VF widen_half(VHalf half) { return (VF)_mm256_cvtph_ps((__m128i)half); }
inline VHalf narrow_half(VF value) { return (VHalf)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"avx2_fused", Isa::kAvx2, fused_accepts, fused_run};

}  // namespace narrow::cpu::avx2_fused
