/// Decode steps of integers of up to 3 bits.

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_main.cuh"

namespace narrow::cuda::sm90 {

std::span<const StepInstance> step_integers() {
  static constexpr StepInstance kList[] = {
      {WeightKind::kInteger, 2, false, true, decode_step<Decoder<WeightKind::kInteger, 2>, false, true>},
      {WeightKind::kInteger, 2, false, false, decode_step<Decoder<WeightKind::kInteger, 2>, false, false>},
      {WeightKind::kInteger, 3, false, true, decode_step<Decoder<WeightKind::kInteger, 3>, false, true>},
      {WeightKind::kInteger, 3, false, false, decode_step<Decoder<WeightKind::kInteger, 3>, false, false>},
  };
  return kList;
}

}  // namespace narrow::cuda::sm90
