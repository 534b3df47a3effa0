/// No fast rows: every operation is the reference's. For architectures without leaves, and for builds where the readers alone matter
/// (fuzzers, the memory sanitizer): the leaves are most of the time of a build.

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/binary_rows.h"
#include "kernels/cpu/fused_rows.h"
#include "kernels/cpu/logits_rows.h"
#include "kernels/cpu/matmul_tables.h"
#include "kernels/cpu/msfp_rows.h"
#include "kernels/cpu/tables.h"

namespace narrow::cpu {

std::span<const AttentionKernel> attention_rows() { return {}; }
std::span<const BinaryKernel> binary_rows() { return {}; }
std::span<const DequantizeKernel> dequantize_rows() { return {}; }
std::span<const FusedKernel> fused_rows() { return {}; }
std::span<const LogitsKernel> logits_rows() { return {}; }
std::span<const MatmulKernel> matmul_rows() { return {}; }
std::span<const MsfpKernel> msfp_rows() { return {}; }
std::span<const QuantizeKernel> quantize_rows() { return {}; }

}  // namespace narrow::cpu
