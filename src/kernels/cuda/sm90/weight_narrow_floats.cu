/// fp3_e2m0, fp4_e2m1, fp5_e2m2.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_narrow_floats() {
  static constexpr auto kList = join(
      all_tiles<Floats<3>, false>(), all_tiles<Floats<3>, true>(), all_tiles<Floats<4>, false>(), all_tiles<Floats<4>, true>(),
      all_tiles<Floats<5>, false>(), all_tiles<Floats<5>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
