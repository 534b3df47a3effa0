/// kFusedRows for inputs of type kBf16.

#include "kernels/cuda/fused_rows.cuh"

namespace narrow::cuda {

int launch_fused_rows_bf16(const FusedQuantizeProblem& problem, Stream stream) {
  return launch_fused_rows_of<DType::kBf16>(problem, stream);
}

}  // namespace narrow::cuda
