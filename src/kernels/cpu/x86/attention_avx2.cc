// AVX2: 8 lanes; tiles of 6 x 16 take 12 of 16 registers.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace narrow::cpu::avx2_attention {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

constexpr int kTileRows = 6, kTileVectors = 2;
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

#include "kernels/cpu/attention.inl"
#include "kernels/cpu/logits.inl"

}  // namespace

extern const AttentionKernel kRow;
const AttentionKernel kRow{"avx2_attention", Isa::kAvx2, attention_accepts, attention_scratch_bytes, attention_run};
extern const LogitsKernel kLogitsRow;
const LogitsKernel kLogitsRow{"avx2_logits", Isa::kAvx2, logits_run};

}  // namespace narrow::cpu::avx2_attention
