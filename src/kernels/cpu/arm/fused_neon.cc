// NEON: 4 lanes.
#include <arm_neon.h>

#include <cstdint>
#include <utility>

#include "format/elementary.h"
#include "kernels/cpu/fused_rows.h"
#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu::neon_fused {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

#include "kernels/cpu/quantize/encode.inl"

inline VF widen_half(VHalf half) { return (VF)vcvt_f32_f16((float16x4_t)half); }
inline VHalf narrow_half(VF value) { return (VHalf)vcvt_f16_f32((float32x4_t)value); }
inline VF widen_bf16(VHalf half) { return as_float((VU)vmovl_u16((uint16x4_t)half) << 16); }
inline VHalf narrow_bits(VU lanes) { return (VHalf)vmovn_u32((uint32x4_t)lanes); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

#include "kernels/cpu/arm/bytes_neon.inl"

#include "kernels/cpu/quantize/run_codes.inl"

#include "kernels/cpu/fused.inl"

}  // namespace

extern const FusedKernel kRow;
const FusedKernel kRow{"neon_fused", Isa::kNeon, fused_accepts, fused_run, fused_quantize_rows, fence};

}  // namespace narrow::cpu::neon_fused
