/// Every other float of 7 and 8 bits and up to 4 exponent bits, and fp8_e5m2.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_any_fp8() {
  static constexpr auto kList = join(some_tiles<AnyFloats<8>, false>(), some_tiles<AnyFloats<8>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
