#pragma once
/// The sum over a row that every backend takes in the same order (that of format/scale_rule.h, in fp32 within a segment):
/// segments of 1024 elements, one after the other; within a segment element i joins partial sum i % 32 in fp32 (a square by one fused
/// multiply-add), and the 32 fold by halves (16, 8, 4, 2, 1); the segments' sums are added in fp64, in order.

#include <cmath>
#include <cstdint>

#include "format/elementary.h"
#include "format/scale_rule.h"

namespace narrow {

/// a b + c with one rounding.
NARROW_HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// join(sum, i) gives a partial sum with element i's summand added to it, in fp32.
template <typename Join>
NARROW_HOST_DEVICE constexpr double row_sum(std::int64_t count, const Join& join) {
  double total = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kSumSegment) {
    const std::int64_t end = begin + kSumSegment < count ? begin + kSumSegment : count;
    float lanes[kSumLanes] = {};
    for (std::int64_t i = begin; i < end; ++i) lanes[(i - begin) % kSumLanes] = join(lanes[(i - begin) % kSumLanes], i);
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] = detail::add(lanes[lane], lanes[lane + half]);
    total += static_cast<double>(lanes[0]);
  }
  return total;
}

/// The mean behind a norm: the fp64 sum divided by the count, rounded once to fp32.
NARROW_HOST_DEVICE constexpr float mean_from_sum(double sum, std::int64_t count) {
  return static_cast<float>(sum / static_cast<double>(count));
}

}  // namespace narrow
