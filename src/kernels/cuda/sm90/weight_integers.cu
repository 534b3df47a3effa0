/// Integers of 2, 3, 4 and 8 bits, with and without zero points.

#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const WeightInstance> weight_integers() {
  static constexpr auto kList = join(
      all_tiles<Integers<4>, false>(), all_tiles<Integers<4>, true>(), all_tiles<Integers<8>, false>(), all_tiles<Integers<8>, true>(),
      some_tiles<Integers<2>, false>(), some_tiles<Integers<2>, true>(), some_tiles<Integers<3>, false>(), some_tiles<Integers<3>, true>());
  return kList;
}

}  // namespace narrow::cuda::sm90
