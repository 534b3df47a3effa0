/// fp5_e2m2.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_fp5() {
  static constexpr auto kList = join(all_tiles<Floats<5>, false>(), all_tiles<Floats<5>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
