/// Decode steps of floats of 5 to 8 bits.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_floats_wide() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kFloat, 5, false, true, decode_step<Decoder<WeightKind::kFloat, 5>, false, true>},
      {WeightKind::kFloat, 5, false, false, decode_step<Decoder<WeightKind::kFloat, 5>, false, false>},
      {WeightKind::kFloat, 6, false, true, decode_step<Decoder<WeightKind::kFloat, 6>, false, true>},
      {WeightKind::kFloat, 6, false, false, decode_step<Decoder<WeightKind::kFloat, 6>, false, false>},
      {WeightKind::kFloat, 8, false, true, decode_step<Decoder<WeightKind::kFloat, 8>, false, true>},
      {WeightKind::kFloat, 8, false, false, decode_step<Decoder<WeightKind::kFloat, 8>, false, false>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
