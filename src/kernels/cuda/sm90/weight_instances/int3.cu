/// int3, uint3.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_int3() {
  static constexpr auto kList = join(some_tiles<Integers<3>, false>(), some_tiles<Integers<3>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
