/// int4, uint4.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_int4() {
  static constexpr auto kList = join(all_tiles<Integers<4>, false>(), all_tiles<Integers<4>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
