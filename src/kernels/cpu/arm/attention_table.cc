#include <array>

#include "kernels/cpu/attention_rows.h"

namespace narrow::cpu {

namespace neon_attention {
extern const AttentionKernel kRow;
}

std::span<const AttentionKernel> attention_rows() {
  static const std::array<AttentionKernel, 1> rows{neon_attention::kRow};
  return rows;
}

}  // namespace narrow::cpu
