// NEON: 4 lanes.
#include <arm_neon.h>

#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"

namespace narrow::cpu::neon_fused {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

inline VF widen_half(VHalf half) { return (VF)vcvt_f32_f16((float16x4_t)half); }
inline VHalf narrow_half(VF value) { return (VHalf)vcvt_f16_f32((float32x4_t)value); }

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"neon_fused", Isa::kNeon, fused_accepts, fused_run};

}  // namespace narrow::cpu::neon_fused
