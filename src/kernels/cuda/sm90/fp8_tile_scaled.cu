/// The block-scaled product (1x128 x 128x128), e4m3, in every listed tile.

#include "kernels/cuda/sm90/fp8_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const Fp8Instance> fp8_tile_scaled() {
  static const Fp8Instance instances[] = {
      instance<Fp8Tile<256, 128, 4, Share::kA>>(0),
      instance<Fp8Tile<128, 192, 5, Share::kB>>(1),
      instance<Fp8Tile<128, 128, 6, Share::kB>>(2),
      instance<Fp8Tile<128, 128, 6, Share::kNothing>>(3),
      instance<Fp8Tile<128, 192, 5, Share::kNothing>>(4),
      instance<Fp8Tile<64, 128, 8, Share::kNothing>>(5),
      instance<Fp8Tile<64, 256, 5, Share::kNothing>>(6),
      instance<Fp8Tile<128, 16, 10, Share::kNothing, Fp8Scaling::kBlockTile, Fp8Pair::kE4m3E4m3, true>>(7),
      instance<Fp8Tile<128, 32, 9, Share::kNothing, Fp8Scaling::kBlockTile, Fp8Pair::kE4m3E4m3, true>>(8),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
