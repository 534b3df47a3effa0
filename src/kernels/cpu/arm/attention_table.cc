#include <array>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace narrow::cpu {

namespace neon_attention {
extern const AttentionKernel kRow;
extern const LogitsKernel kLogitsRow;
}  // namespace neon_attention

std::span<const AttentionKernel> attention_rows() {
  static const std::array<AttentionKernel, 1> rows{neon_attention::kRow};
  return rows;
}

std::span<const LogitsKernel> logits_rows() {
  static const std::array<LogitsKernel, 1> rows{neon_attention::kLogitsRow};
  return rows;
}

}  // namespace narrow::cpu
