/// fp4_e2m1.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_fp4() {
  static constexpr auto kList = join(all_tiles<Floats<4>, false>(), all_tiles<Floats<4>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
