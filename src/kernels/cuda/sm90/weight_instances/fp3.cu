/// fp3_e2m0.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_fp3() {
  static constexpr auto kList = join(all_tiles<Floats<3>, false>(), all_tiles<Floats<3>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
