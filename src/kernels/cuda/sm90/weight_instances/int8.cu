/// int8, uint8, mxint8's elements.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_int8() {
  static constexpr auto kList = join(all_tiles<Integers<8>, false>(), all_tiles<Integers<8>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
