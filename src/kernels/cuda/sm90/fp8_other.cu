/// The other scalings and pairs of formats of the fp8 product, in fewer tiles.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> fp8_other() {
  using enum ByteScaling;
  using enum BytePair;
  static const ByteInstance instances[] = {
      instance<ByteTile<256, 128, 3, Share::kA, kOuter>>("256x128_cluster_1x2"),
      instance<ByteTile<128, 176, 4, Share::kNothing, kOuterFast, kE4m3E4m3, TileForm::kPingPong>>("128x176_pingpong"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuterFast, kE4m3E4m3, TileForm::kPingPong>>("128x128_pingpong"),
      instance<ByteTile<128, 240, 4, Share::kNothing, kOuterFast>>("128x240"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter>>("128x128"),
      instance<ByteTile<128, 64, 8, Share::kNothing, kOuter>>("128x64"),
      instance<ByteTile<64, 64, 11, Share::kNothing, kOuter, kE4m3E4m3, TileForm::kDeep>>("64x64"),
      instance<ByteTile<64, 16, 20, Share::kNothing, kOuter, kE4m3E4m3, TileForm::kSwapped>>("swapped_64x16"),
      instance<ByteTile<128, 128, 5, Share::kB, kBlockBlock>>("128x128_cluster_2x1"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock>>("128x128"),
      instance<ByteTile<64, 64, 12, Share::kNothing, kBlockBlock>>("64x64"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kE4m3E5m2>>("128x128"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kE5m2E4m3>>("128x128"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockTile, kE4m3E5m2>>("128x128"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockTile, kE5m2E4m3>>("128x128"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock, kE4m3E5m2>>("128x128"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kBlockBlock, kE5m2E4m3>>("128x128"),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
