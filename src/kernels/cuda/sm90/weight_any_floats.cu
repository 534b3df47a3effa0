/// Every other float of up to 8 bits and 5 exponent bits.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_any_floats() {
  static constexpr auto kList = join(
      some_tiles<AnyFloats<4>, false>(), some_tiles<AnyFloats<4>, true>(), some_tiles<AnyFloats<5>, false>(), some_tiles<AnyFloats<5>, true>(),
      some_tiles<AnyFloats<6>, false>(), some_tiles<AnyFloats<6>, true>(), some_tiles<AnyFloats<8>, false>(), some_tiles<AnyFloats<8>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
