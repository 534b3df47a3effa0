#pragma once
/// The equations of the training pieces, one element or one state each. Host and device.

#include <bit>
#include <cstdint>

#include "format/elementary.h"
#include "narrow/codec.h"

namespace narrow {

/// What one element of fake-quantize passes back.
struct StepGradient {
  bool passes = false;  ///< the gradient of x is grad_y, else 0
  float step = 0.0f;    ///< d y / d s
};

NARROW_HOST_DEVICE constexpr StepGradient step_gradient(const Format& format, float x, float scale) {
  if (x != x) return {};
  const float largest = static_cast<float>(format.largest());
  const float q = detail::divide(x, scale);
  if (q > largest) return {false, largest};
  if (q < -largest) return {false, -largest};
  return {true, detail::add(decode(format, encode(format, q)), -q)};
}

/// Partial sums of values in fp64: value i is added to partial sum i % 32, and the 32 fold by halves.
template <typename Term>
NARROW_HOST_DEVICE constexpr double lane_sum(std::int64_t count, const Term& term) {
  double lanes[32] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i % 32] += term(i);
  for (int half = 16; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

/// The gradient of a scale from the fp64 sum over its cell.
NARROW_HOST_DEVICE constexpr float scale_gradient(double sum, float factor) { return detail::multiply(static_cast<float>(sum), factor); }

struct LossScaleState {
  float scale = 1.0f;
  std::uint32_t steps = 0;
};

NARROW_HOST_DEVICE constexpr LossScaleState next_loss_scale(LossScaleState state, bool overflowed, float growth, float backoff,
                                                            std::uint32_t interval) {
  if (overflowed) return {detail::multiply(state.scale, backoff), 0};
  if (state.steps + 1 < interval) return {state.scale, state.steps + 1};
  const float grown = detail::multiply(state.scale, growth);
  return {(std::bit_cast<std::uint32_t>(grown) & 0x7FFFFFFFu) < 0x7F800000u ? grown : state.scale, 0};
}

/// The scale that an amax gives, or the one before where it gives none. power = 2^margin.
NARROW_HOST_DEVICE constexpr float delayed_scale(float amax, float before, float largest, float power) {
  if (!(amax > 0.0f) || std::bit_cast<std::uint32_t>(amax) >= 0x7F800000u) return before;
  const float scale = detail::multiply(detail::divide(amax, largest), power);
  return scale > 0.0f && std::bit_cast<std::uint32_t>(scale) < 0x7F800000u ? scale : before;
}

}  // namespace narrow
