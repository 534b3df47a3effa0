// AVX-512: 16 lanes; tiles of 6 x 64 take 24 of 32 registers.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "format/elementary.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace narrow::cpu::avx512_attention {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

constexpr int kTileRows = 6, kTileVectors = 4;
inline VF multiply_add(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

#include "kernels/cpu/attention.inl"
#include "kernels/cpu/logits.inl"

}  // namespace

extern const AttentionKernel kRow;
const AttentionKernel kRow{"avx512_attention", Isa::kAvx512, attention_accepts, attention_scratch_bytes, attention_run};
extern const LogitsKernel kLogitsRow;
const LogitsKernel kLogitsRow{"avx512_logits", Isa::kAvx512, logits_run};

}  // namespace narrow::cpu::avx512_attention
