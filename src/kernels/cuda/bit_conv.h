#pragma once
/// 2-D convolutions of +-1, packed as bits: plain problems on device pointers. A tap is the channels of one group at one place of the
/// kernel; it takes whole words of 32 bits, with zeros beyond its channels. Places outside of the image count for nothing.
///   sum = 4 popcount(X & W) - 2 popcount(X) + offset[output] - sum over outside taps of tap_sums[output, tap],
///   offset = taps * channels - 2 popcount(W),  tap_sums = channels - 2 popcount(W of the tap),  X having zeros outside

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

constexpr int kConvOutputs = 64;  ///< outputs of a tile; weights are padded to whole tiles
constexpr int kConvWords = 16;    ///< words of a row of weights come in multiples of this
constexpr int kConvMostTaps = 256;

struct BitConvShape {
  int images = 0, height = 0, width = 0, out_height = 0, out_width = 0;
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  int groups = 1, channels = 0, outputs = 0;  ///< of one group

  constexpr int taps() const { return kernel_h * kernel_w; }
  constexpr int tap_words() const { return (channels + 31) / 32; }
  constexpr int words() const { return (taps() * tap_words() + kConvWords - 1) / kConvWords * kConvWords; }
  constexpr int padded_outputs() const { return (outputs + kConvOutputs - 1) / kConvOutputs * kConvOutputs; }
  constexpr std::int64_t positions() const { return std::int64_t{images} * out_height * out_width; }
};

struct BitConvProblem {
  BitConvShape shape;
  const std::uint32_t* x = nullptr;        ///< [image, row, column][group][tap_words], 16-byte aligned
  const std::uint32_t* w = nullptr;        ///< [group][padded_outputs][words], 16-byte aligned
  const std::int32_t* offsets = nullptr;   ///< [group * outputs]
  const std::int32_t* tap_sums = nullptr;  ///< [group * outputs][taps]
  const float* x_scale = nullptr;          ///< one
  const float* w_scales = nullptr;         ///< [group * outputs]
  DType out = DType::kF32;                 ///< kI32: sums; kF32, kF16, kBf16: float(sum) * (x_scale * w_scale)
  void* y = nullptr;                       ///< [position][group * outputs]
  /// Of one-bit results, instead of y: bit = sign * sum >= threshold. Rows of bit_pitch bytes, zeros beyond the outputs.
  const std::int32_t* thresholds = nullptr;
  const std::int32_t* signs = nullptr;
  std::uint8_t* bits = nullptr;
  std::int64_t bit_pitch = 0;
};
int launch_bit_conv(const BitConvProblem& problem, Stream stream);

/// Pixels of canonical bits, row_bytes each, as words per group.
int launch_spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, const BitConvShape& shape,
                         std::uint32_t* to, Stream stream);
/// Canonical weights [group * outputs, taps * channels] as BitConvProblem has them; scale_step 0: one scale for all outputs.
int launch_spread_conv_weights(const std::uint8_t* from, std::int64_t row_bytes, const float* scales, int scale_step,
                               const BitConvShape& shape, std::uint32_t* w, std::int32_t* offsets, std::int32_t* tap_sums, float* w_scales,
                               Stream stream);

}  // namespace narrow::cuda
