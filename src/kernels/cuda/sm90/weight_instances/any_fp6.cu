/// fp6_e2m3, and every other float of 6 bits.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_any_fp6() {
  static constexpr auto kList = join(all_tiles<Floats<6, 3>, false>(), all_tiles<Floats<6, 3>, true>(), some_tiles<AnyFloats<6>, false>(),
                                     some_tiles<AnyFloats<6>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
