#pragma once
/// 2-D convolutions of +-1, packed as bits: plain problems on device pointers. A tap is the channels of one group at one place of the
/// kernel; it takes whole words of 32 bits, with zeros beyond its channels. Places outside of the image count for nothing.
///   sum = 4 popcount(X & W) + 2 popcount(W of taps outside) - 2 popcount(X) - channels * (taps outside) + offset[output],
///   offset = taps * channels - 2 popcount(W),  X having zeros outside
///
/// The words of a window, tap by tap, are cut into units: as many neighbouring words of a tap as one load can take. A step of the sum is
/// four units, one for each lane of a quad (of single words eight). Weights lie as the lanes of a warp take them.

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

constexpr int kConvOutputs = 64;                                        ///< outputs of a tile; weights are padded to whole tiles
constexpr int kConvColumns = 8;                                         ///< of a tile: the instruction's columns, eight outputs each
constexpr int kConvMostTaps = 256, kConvMostProducts = (1 << 20) - 32;  ///< of a window: what places name, and sums that are exact floats

struct BitConvShape {
  int images = 0, height = 0, width = 0, out_height = 0, out_width = 0;
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  int groups = 1, channels = 0, outputs = 0;  ///< of one group

  constexpr int taps() const { return kernel_h * kernel_w; }
  constexpr int tap_words() const { return (channels + 31) / 32; }
  constexpr int unit_words() const { return tap_words() % 4 == 0 ? 4 : (tap_words() % 2 == 0 ? 2 : 1); }
  constexpr int units_of_tap() const { return tap_words() / unit_words(); }
  constexpr int units_of_step() const { return unit_words() == 1 ? 8 : 4; }
  constexpr int steps() const { return (taps() * units_of_tap() + units_of_step() - 1) / units_of_step(); }
  constexpr int lane_words() const { return unit_words() == 4 ? 4 : 2; }  ///< of weights, in a step and for a column
  constexpr int output_tiles() const { return (outputs + kConvOutputs - 1) / kConvOutputs; }
  constexpr int padded_outputs() const { return output_tiles() * kConvOutputs; }
  constexpr std::int64_t weight_words() const { return std::int64_t{groups} * output_tiles() * steps() * kConvColumns * 32 * lane_words(); }
  constexpr std::int64_t positions() const { return std::int64_t{images} * out_height * out_width; }
};

/// The output of a tile that lane / 4 of the instruction's column `column` stands for: results of a lane are neighbours then.
constexpr int conv_output(int column, int quad) { return quad / 2 * 2 * kConvColumns + column * 2 + quad % 2; }

/// Where a unit lies in its window: row of the kernel, column of the kernel, word of the tap. Negative: beyond the last tap.
constexpr std::int32_t conv_place(int row, int column, int word) { return row | column << 8 | word << 16; }

/// What prepare makes of the weights.
struct BitConvWeights {
  std::uint32_t* codes = nullptr;   ///< [group][tile][step][column][lane][lane_words], 16-byte aligned
  std::int32_t* places = nullptr;   ///< [steps * units_of_step]
  std::int32_t* offsets = nullptr;  ///< [group][padded_outputs]
  float* scales = nullptr;          ///< [group][padded_outputs]
};

struct BitConvProblem {
  BitConvShape shape;
  const std::uint32_t* x = nullptr;  ///< [image, row, column][group][tap_words], 16-byte aligned
  BitConvWeights w;
  const float* x_scale = nullptr;  ///< one
  DType out = DType::kF32;         ///< kI32: sums; kF32, kF16, kBf16: float(sum) * (x_scale * w_scale)
  void* y = nullptr;               ///< [position][group * outputs]
  /// Of one-bit results, instead of y: bit = sign * sum >= threshold, [group * outputs]. Rows of bit_pitch bytes, zeros beyond the outputs.
  const std::int32_t* thresholds = nullptr;
  const std::int32_t* signs = nullptr;
  std::uint8_t* bits = nullptr;
  std::int64_t bit_pitch = 0;
};
int launch_bit_conv(const BitConvProblem& problem, Stream stream);

/// Pixels of canonical bits, row_bytes each, as words per group.
int launch_spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, const BitConvShape& shape,
                         std::uint32_t* to, Stream stream);
/// Canonical weights [group * outputs, taps * channels] as BitConvWeights has them; scale_step 0: one scale for all outputs.
int launch_prepare_conv(const std::uint8_t* from, std::int64_t row_bytes, const float* scales, int scale_step, const BitConvShape& shape,
                        const BitConvWeights& to, Stream stream);

}  // namespace narrow::cuda
