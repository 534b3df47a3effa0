/// kFusedRows for inputs of type kF16.

#include "kernels/cuda/fused_rows.cuh"

namespace narrow::cuda {

int launch_fused_rows_f16(const FusedQuantizeProblem& problem, Stream stream) { return launch_fused_rows_of<DType::kF16>(problem, stream); }

}  // namespace narrow::cuda
