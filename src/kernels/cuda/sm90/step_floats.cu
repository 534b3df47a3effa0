/// Decode steps of floats of up to 8 bits.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_floats() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kFloat, 3, false, decode_step<Decoder<WeightKind::kFloat, 3>, false>},
      {WeightKind::kFloat, 4, false, decode_step<Decoder<WeightKind::kFloat, 4>, false>},
      {WeightKind::kFloat, 5, false, decode_step<Decoder<WeightKind::kFloat, 5>, false>},
      {WeightKind::kFloat, 6, false, decode_step<Decoder<WeightKind::kFloat, 6>, false>},
      {WeightKind::kFloat, 8, false, decode_step<Decoder<WeightKind::kFloat, 8>, false>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
