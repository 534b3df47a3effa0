/// The block-scaled product (1x128 x 128x128), e4m3, in small tiles; compiled with register-usage-level=10 (cmake/cuda_sources.cmake).

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> fp8_tile_scaled_small() {
  using enum ByteScaling;
  using enum BytePair;
  using enum TileForm;
  static const ByteInstance instances[] = {
      instance<ByteTile<128, 64, 8, Share::kNothing>>("128x64"),
      instance<ByteTile<64, 112, 7, Share::kNothing, kBlockTile, kE4m3E4m3, kDeep>>("64x112"),
      instance<ByteTile<64, 64, 11, Share::kNothing, kBlockTile, kE4m3E4m3, kDeep>>("64x64"),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
