/// fp8_e4m3.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_fp8() {
  static constexpr auto kList = join(all_tiles<Floats<8>, false>(), all_tiles<Floats<8>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
