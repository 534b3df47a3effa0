/// Decode steps of floats of up to 4 bits.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_floats() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kFloat, 3, false, true, decode_step<Decoder<WeightKind::kFloat, 3>, false, true>},
      {WeightKind::kFloat, 3, false, false, decode_step<Decoder<WeightKind::kFloat, 3>, false, false>},
      {WeightKind::kFloat, 4, false, true, decode_step<Decoder<WeightKind::kFloat, 4>, false, true>},
      {WeightKind::kFloat, 4, false, false, decode_step<Decoder<WeightKind::kFloat, 4>, false, false>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
