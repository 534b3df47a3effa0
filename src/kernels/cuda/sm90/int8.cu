/// The int8 product: no promotion, so that the accumulators take the registers and tiles can be large.

#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {

std::span<const ByteInstance> int8_instances() {
  using enum ByteScaling;
  using enum BytePair;
  static const ByteInstance instances[] = {
      instance<ByteTile<128, 176, 4, Share::kNothing, kOuter, kS8S8, TileForm::kPingPong>>("128x176_pingpong"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kS8S8, TileForm::kPingPong>>("128x128_pingpong"),
      instance<ByteTile<128, 240, 4, Share::kNothing, kOuter, kS8S8>>("128x240"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kS8S8, TileForm::kPingPongCol32>>("128x128_pingpong_col32"),
      instance<ByteTile<128, 240, 4, Share::kNothing, kOuter, kS8S8, TileForm::kCol32>>("128x240_col32"),
      instance<ByteTile<128, 128, 5, Share::kNothing, kOuter, kS8S8>>("128x128"),
      instance<ByteTile<128, 64, 8, Share::kNothing, kOuter, kS8S8>>("128x64"),
      instance<ByteTile<64, 64, 11, Share::kNothing, kOuter, kS8S8, TileForm::kDeep>>("64x64"),
      instance<ByteTile<64, 16, 20, Share::kNothing, kOuter, kS8S8, TileForm::kSwapped>>("swapped_64x16"),
  };
  return instances;
}

}  // namespace narrow::cuda::sm90
