/// Two bits: int2, uint2, int1.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_int2() {
  static constexpr auto kList = join(some_tiles<Integers<2>, false>(), some_tiles<Integers<2>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
