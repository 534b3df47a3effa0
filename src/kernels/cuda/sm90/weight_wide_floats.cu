/// fp6_e3m2, fp8_e4m3, and dense 16-bit weights.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_wide_floats() {
  static constexpr auto kList = join(
      all_tiles<Floats<6>, false>(), all_tiles<Floats<6>, true>(), all_tiles<Floats<8>, false>(), all_tiles<Floats<8>, true>(),
      all_tiles<Dense, false>(), all_tiles<Dense, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
