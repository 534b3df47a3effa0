#pragma once
/// The scales among which a search for the least error chooses. Host and device, so that both choose among the same.

#include "format/scale_rule.h"

namespace narrow {

/// The extremes of the values that share a scale, with zero among them, and the mean of their magnitudes.
struct Extremes {
  float lowest = 0.0f, highest = 0.0f;
  double mean = 0.0;
};

/// Candidates of a rectangle: from a little beyond its extremes, which moves a float format's grid, down to a third.
inline constexpr int kScaleCandidates = 31;

/// Candidate `index`: the scale that the scheme's rule would make if the extremes were 1.1, 1.075, ..., 0.35 times as large.
NARROW_HOST_DEVICE constexpr ScaleAndZero scale_candidate(const Scheme& scheme, const Extremes& e, int index, float outer) {
  const float factor = static_cast<float>(44 - index) / 40.0f;
  if (scheme.asymmetric) return scale_from_range(scheme, e.lowest * factor, e.highest * factor);
  if (scheme.rule == ScaleRule::kMeanAbsolute) return {scale_from_sum(scheme, e.mean * static_cast<double>(factor), 1), 0};
  return {scale_from_amax(scheme, (-e.lowest > e.highest ? -e.lowest : e.highest) * factor, outer), 0};
}

}  // namespace narrow
