/// The block-scaled product (1x128 x 128x128), e4m3, in every listed tile but the small ones.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> fp8_tile_scaled() {
  using enum ByteScaling;
  using enum BytePair;
  using enum TileForm;
  static const ByteInstance instances[] = {
      instance<ByteTile<256, 128, 3, Share::kNothing>>("256x128"),
      instance<ByteTile<128, 192, 4, Share::kNothing>>("128x192"),
      instance<ByteTile<128, 128, 5, Share::kNothing>>("128x128"),
      instance<ByteTile<128, 112, 6, Share::kNothing>>("128x112"),
      instance<ByteTile<64, 256, 4, Share::kNothing>>("64x256"),
      instance<ByteTile<64, 16, 20, Share::kNothing, kBlockTile, kE4m3E4m3, kSwapped>>("swapped_64x16"),
      instance<ByteTile<128, 32, 9, Share::kNothing, kBlockTile, kE4m3E4m3, kSwapped>>("swapped_128x32"),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
