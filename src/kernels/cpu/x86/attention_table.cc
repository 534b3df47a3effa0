#include <array>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace narrow::cpu {

namespace avx512_attention {
extern const AttentionKernel kRow;
extern const LogitsKernel kLogitsRow;
}  // namespace avx512_attention
namespace avx2_attention {
extern const AttentionKernel kRow;
extern const LogitsKernel kLogitsRow;
}  // namespace avx2_attention

std::span<const AttentionKernel> attention_rows() {
  static const std::array<AttentionKernel, 2> rows{avx512_attention::kRow, avx2_attention::kRow};
  return rows;
}

std::span<const LogitsKernel> logits_rows() {
  static const std::array<LogitsKernel, 2> rows{avx512_attention::kLogitsRow, avx2_attention::kLogitsRow};
  return rows;
}

}  // namespace narrow::cpu
