/// fp4_e1m2 (msfp12), and every other float of up to 4 bits.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_any_fp4() {
  static constexpr auto kList = join(all_tiles<Floats<4, 2>, false>(), all_tiles<Floats<4, 2>, true>(), some_tiles<AnyFloats<4>, false>(),
                                     some_tiles<AnyFloats<4>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
