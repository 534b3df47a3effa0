/// The other scalings and pairs of formats of the fp8 product, in fewer tiles.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> fp8_other() {
  using enum ByteScaling;
  using enum BytePair;
  static const ByteInstance instances[] = {
      instance<ByteTile<256, 128, 3, Share::kA, kOuter>>(0),
      instance<ByteTile<128, 256, 3, Share::kB, kOuterFast>>(9),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter>>(3),
      instance<ByteTile<64, 128, 8, Share::kNothing, kOuter>>(5),
      instance<ByteTile<128, 16, 10, Share::kNothing, kOuter, kE4m3E4m3, TileForm::kSwapped>>(7),
      instance<ByteTile<128, 128, 5, Share::kB, kBlockBlock>>(2),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock>>(3),
      instance<ByteTile<64, 128, 8, Share::kNothing, kBlockBlock>>(5),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kE4m3E5m2>>(3),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kE5m2E4m3>>(3),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockTile, kE4m3E5m2>>(3),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockTile, kE5m2E4m3>>(3),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock, kE4m3E5m2>>(3),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock, kE5m2E4m3>>(3),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
