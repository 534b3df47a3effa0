/// Decode steps of fp16 and bf16.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_dense() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kDense, 16, false, true, decode_step<Decoder<WeightKind::kDense, 16>, false, true>},
      {WeightKind::kDense, 16, true, true, decode_step<Decoder<WeightKind::kDense, 16>, true, true>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
