// NEON: 4 lanes; tiles of 6 x 16 take 24 of 32 registers.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace narrow::cpu::neon_attention {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

constexpr int kTileRows = 6, kTileVectors = 4;
inline VF multiply_add(VF a, VF b, VF c) { return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

#include "kernels/cpu/attention.inl"
#include "kernels/cpu/logits.inl"

}  // namespace

extern const AttentionKernel kRow;
const AttentionKernel kRow{"neon_attention", Isa::kNeon, attention_accepts, attention_scratch_bytes, attention_run};
extern const LogitsKernel kLogitsRow;
const LogitsKernel kLogitsRow{"neon_logits", Isa::kNeon, logits_run};

}  // namespace narrow::cpu::neon_attention
