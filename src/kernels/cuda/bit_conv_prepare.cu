/// What convolutions of +-1 need of pixels and weights before they start: words instead of bits, weights in the order of the lanes.
/// Mapping:  a thread per word, per output, per unit of a window.
/// Bound:    latency; once per layer (pixels: once per call, where channels are no whole words).

#include "kernels/cuda/bit_conv.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

/// `count` (at most 32) bits of a row from bit `begin` on.
__device__ std::uint32_t bits_at(const std::uint8_t* row, std::int64_t begin, int count) {
  const std::uint8_t* first = row + begin / 8;
  const int shift = static_cast<int>(begin % 8), bytes = (shift + count + 7) / 8;
  std::uint64_t window = 0;
  for (int i = 0; i < bytes; ++i) window |= static_cast<std::uint64_t>(first[i]) << (8 * i);
  const auto value = static_cast<std::uint32_t>(window >> shift);
  return count < 32 ? value & ((1u << count) - 1u) : value;
}

__global__ void __launch_bounds__(kThreads)
    spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, BitConvShape s, std::uint32_t* to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, pixel = index / (s.groups * s.tap_words());
  if (pixel >= pixels) return;
  const int word = static_cast<int>(index % (s.groups * s.tap_words())), group = word / s.tap_words(), part = word % s.tap_words() * 32;
  to[index] = bits_at(from + pixel * row_bytes, std::int64_t{group} * s.channels + part, min(32, s.channels - part));
}

__global__ void __launch_bounds__(kThreads)
    order_weights(const std::uint8_t* from, std::int64_t row_bytes, BitConvShape s, std::uint32_t* to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= s.weight_words()) return;
  std::int64_t rest = index;
  const auto take = [&](int count) {  // the innermost of the dimensions that are left
    const int i = static_cast<int>(rest % count);
    rest /= count;
    return i;
  };
  const int i = take(s.lane_words()), lane = take(32), column = take(kConvColumns), step = take(s.steps()), tile = take(s.output_tiles());
  const std::int64_t group = rest;
  const int unit = step * s.units_of_step() + (s.unit_words() == 1 ? i * 4 : 0) + lane % 4;
  const int word = s.unit_words() == 1 ? unit : unit * s.unit_words() + i, tap = word / s.tap_words(), part = word % s.tap_words() * 32;
  const int output = tile * kConvOutputs + conv_output(column, lane / 4);
  const bool real = output < s.outputs && tap < s.taps();
  to[index] =
      real ? bits_at(from + (group * s.outputs + output) * row_bytes, std::int64_t{tap} * s.channels + part, min(32, s.channels - part))
           : 0u;
}

__global__ void __launch_bounds__(kThreads)
    conv_terms(const std::uint8_t* from, std::int64_t row_bytes, const float* scales, int scale_step, BitConvShape s, BitConvWeights to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= std::int64_t{s.groups} * s.padded_outputs()) return;
  const std::int64_t group = index / s.padded_outputs(), padded = index % s.padded_outputs(), output = group * s.outputs + padded;
  const bool real = padded < s.outputs;
  const std::int64_t products = std::int64_t{s.taps()} * s.channels;
  int ones = 0;
  for (std::int64_t i = 0; real && i < products; i += 32)
    ones += __popc(bits_at(from + output * row_bytes, i, static_cast<int>(min(std::int64_t{32}, products - i))));
  to.offsets[index] = static_cast<int>(products) - 2 * ones;
  to.scales[index] = real ? scales[output * scale_step] : 0.0f;
}

__global__ void __launch_bounds__(kThreads) conv_places(BitConvShape s, std::int32_t* places) {
  const int unit = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), tap = unit / s.units_of_tap();
  if (unit >= s.steps() * s.units_of_step()) return;
  places[unit] = tap < s.taps() ? conv_place(tap / s.kernel_w, tap % s.kernel_w, unit % s.units_of_tap() * s.unit_words()) : -1;
}

constexpr std::int64_t blocks_for(std::int64_t threads) { return (threads + kThreads - 1) / kThreads; }

}  // namespace

int launch_spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, const BitConvShape& shape,
                         std::uint32_t* to, Stream stream) {
  return launch_kernel(spread_pixels, blocks_for(pixels * shape.groups * shape.tap_words()), kThreads, stream, from, pixels, row_bytes,
                       shape, to);
}

int launch_prepare_conv(const std::uint8_t* from, std::int64_t row_bytes, const float* scales, int scale_step, const BitConvShape& shape,
                        const BitConvWeights& to, Stream stream) {
  if (const int error = launch_kernel(order_weights, blocks_for(shape.weight_words()), kThreads, stream, from, row_bytes, shape, to.codes))
    return error;
  if (const int error = launch_kernel(conv_places, blocks_for(shape.steps() * shape.units_of_step()), kThreads, stream, shape, to.places))
    return error;
  return launch_kernel(conv_terms, blocks_for(std::int64_t{shape.groups} * shape.padded_outputs()), kThreads, stream, from, row_bytes,
                       scales, scale_step, shape, to);
}

}  // namespace narrow::cuda
