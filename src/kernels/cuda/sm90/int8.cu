/// The int8 product: no promotion, so that the accumulators take the registers and tiles can be large.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> int8_instances() {
  using enum ByteScaling;
  using enum BytePair;
  static const ByteInstance instances[] = {
      instance<ByteTile<128, 256, 3, Share::kB, kOuter, kS8S8>>(9),
      instance<ByteTile<128, 256, 3, Share::kB, kOuter, kS8S8, TileForm::kCol32>>(10),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kS8S8>>(3),
      instance<ByteTile<64, 128, 8, Share::kNothing, kOuter, kS8S8>>(5),
      instance<ByteTile<128, 16, 10, Share::kNothing, kOuter, kS8S8, TileForm::kSwapped>>(7),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
