/// The table of fused kernels, and the row that keeps rows in registers.

#include <array>

#include "kernels/cuda/fused_rows.cuh"

namespace narrow::cuda {
namespace {

constexpr std::int64_t kRegisters = 65536;  // of a thread block, on every device from compute capability 8.0 on

bool accepts(const FusedQuantizeProblem& problem) {
  const FusedOp op = problem.fused.op;
  const std::int64_t segments = (problem.fused.cols + kSegment - 1) / kSegment;
  if (segments > kMostSegments || segments * 32 * registers_of(op, Case::kAny) > kRegisters) return false;
  const std::int64_t stages = segments * rows_of(op) * inputs_of(op) * stage_bytes(problem.fused.dtype);
  return stages + static_cast<std::int64_t>(sizeof(Exchange<2>)) <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
}

int launch(const FusedQuantizeProblem& problem, Stream stream) {
  if (problem.fused.dtype == DType::kF32) return launch_fused_rows_f32(problem, stream);
  return problem.fused.dtype == DType::kF16 ? launch_fused_rows_f16(problem, stream) : launch_fused_rows_bf16(problem, stream);
}

}  // namespace

const FusedQuantizeKernel kFusedRows{"cuda_fused_rows", accepts, launch};

std::span<const FusedQuantizeKernel> fused_quantize_kernels() {
  static const std::array rows{kFusedRows, kFusedGeneric};
  return rows;
}

}  // namespace narrow::cuda
