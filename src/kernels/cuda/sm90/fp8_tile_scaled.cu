/// The block-scaled product (1x128 x 128x128), e4m3, in every listed tile.

#include "kernels/cuda/sm90/fp8_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const Fp8Instance> fp8_tile_scaled() {
  static const Fp8Instance instances[] = {
      instance<Fp8Tile<256, 128, 4, Share::kA>>(0),
      instance<Fp8Tile<256, 128, 4, Share::kA, Fp8Scaling::kBlockTile, false>>(1),
      instance<Fp8Tile<128, 192, 5, Share::kB>>(2),
      instance<Fp8Tile<128, 192, 5, Share::kB, Fp8Scaling::kBlockTile, false>>(3),
      instance<Fp8Tile<128, 128, 6, Share::kB>>(4),
      instance<Fp8Tile<128, 128, 6, Share::kNothing>>(5),
      instance<Fp8Tile<128, 128, 6, Share::kNothing, Fp8Scaling::kBlockTile, false>>(6),
      instance<Fp8Tile<64, 128, 8, Share::kNothing>>(7),
      instance<Fp8Tile<64, 128, 8, Share::kNothing, Fp8Scaling::kBlockTile, false>>(8),
      instance<Fp8Tile<64, 256, 5, Share::kNothing>>(9),
      instance<Fp8Tile<256, 128, 4, Share::kNothing>>(10),
      instance<Fp8Tile<128, 192, 5, Share::kNothing>>(11),
      instance<Fp8Tile<128, 16, 10, Share::kNothing, Fp8Scaling::kBlockTile, false, Fp8Pair::kE4m3E4m3, true>>(12),
      instance<Fp8Tile<128, 32, 9, Share::kNothing, Fp8Scaling::kBlockTile, false, Fp8Pair::kE4m3E4m3, true>>(13),
      instance<Fp8Tile<128, 64, 8, Share::kNothing, Fp8Scaling::kBlockTile, false, Fp8Pair::kE4m3E4m3, true>>(14),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
