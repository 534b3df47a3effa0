/// fp6_e3m2.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_fp6() {
  static constexpr auto kList = join(all_tiles<Floats<6>, false>(), all_tiles<Floats<6>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
