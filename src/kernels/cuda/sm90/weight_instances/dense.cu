/// Dense 16-bit weights.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_dense() {
  static constexpr auto kList = join(dense_tiles<Dense, false>(), dense_tiles<Dense, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
