/// Decode steps of integers of 4 and 8 bits.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_integers_wide() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kInteger, 4, false, true, decode_step<Decoder<WeightKind::kInteger, 4>, false, true>},
      {WeightKind::kInteger, 4, false, false, decode_step<Decoder<WeightKind::kInteger, 4>, false, false>},
      {WeightKind::kInteger, 8, false, true, decode_step<Decoder<WeightKind::kInteger, 8>, false, true>},
      {WeightKind::kInteger, 8, false, false, decode_step<Decoder<WeightKind::kInteger, 8>, false, false>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
