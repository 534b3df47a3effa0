/// kFusedRows for inputs of type kF32.

#include "kernels/cuda/fused_rows.cuh"

namespace narrow::cuda {

int launch_fused_rows_f32(const FusedQuantizeProblem& problem, Stream stream) { return launch_fused_rows_of<DType::kF32>(problem, stream); }

}  // namespace narrow::cuda
