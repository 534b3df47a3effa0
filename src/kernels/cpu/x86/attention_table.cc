#include <array>

#include "kernels/cpu/attention_rows.h"

namespace narrow::cpu {

namespace avx512_attention {
extern const AttentionKernel kRow;
}
namespace avx2_attention {
extern const AttentionKernel kRow;
}

std::span<const AttentionKernel> attention_rows() {
  static const std::array<AttentionKernel, 2> rows{avx512_attention::kRow, avx2_attention::kRow};
  return rows;
}

}  // namespace narrow::cpu
