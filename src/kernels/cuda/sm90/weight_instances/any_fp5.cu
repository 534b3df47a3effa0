/// fp5_e3m1, and every other float of 5 bits.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_any_fp5() {
  static constexpr auto kList = join(all_tiles<Floats<5, 1>, false>(), all_tiles<Floats<5, 1>, true>(), some_tiles<AnyFloats<5>, false>(),
                                     some_tiles<AnyFloats<5>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
