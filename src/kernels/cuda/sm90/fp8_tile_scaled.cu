/// The block-scaled product (1x128 x 128x128), e4m3, in every listed tile.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> fp8_tile_scaled() {
  static const ByteInstance instances[] = {
      instance<ByteTile<256, 128, 3, Share::kA>>(0),
      instance<ByteTile<128, 192, 4, Share::kB>>(1),
      instance<ByteTile<128, 128, 5, Share::kB>>(2),
      instance<ByteTile<128, 128, 5, Share::kNothing>>(3),
      instance<ByteTile<128, 192, 4, Share::kNothing>>(4),
      instance<ByteTile<64, 128, 8, Share::kNothing>>(5),
      instance<ByteTile<64, 256, 4, Share::kNothing>>(6),
      instance<ByteTile<128, 16, 10, Share::kNothing, ByteScaling::kBlockTile, BytePair::kE4m3E4m3, TileForm::kSwapped>>(7),
      instance<ByteTile<128, 32, 9, Share::kNothing, ByteScaling::kBlockTile, BytePair::kE4m3E4m3, TileForm::kSwapped>>(8),
      instance<ByteTile<128, 256, 3, Share::kB, ByteScaling::kBlockTile, BytePair::kE4m3E4m3, TileForm::kRegisters>>(9),
      instance<ByteTile<128, 192, 4, Share::kB, ByteScaling::kBlockTile, BytePair::kE4m3E4m3, TileForm::kRegisters>>(11),
      instance<ByteTile<128, 64, 8, Share::kNothing>>(13),
      instance<ByteTile<64, 64, 12, Share::kNothing>>(14),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
