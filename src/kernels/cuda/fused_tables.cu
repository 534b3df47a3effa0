/// The table of fused kernels, and the row that keeps rows in registers.

#include <array>

#include "kernels/cuda/fused_rows.cuh"

namespace narrow::cuda {
namespace {

bool accepts(const FusedQuantizeProblem& problem) {
  const std::int64_t segments = (problem.fused.cols + 2 * kSegment - 1) / (2 * kSegment) * 2;
  if (segments * kSegmentThreads > kFusedThreads) return false;
  int device = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return false;
  return fused_rows_memory(problem.fused.op, problem.fused.dtype, static_cast<int>(segments), 1) <= static_cast<std::size_t>(most);
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
