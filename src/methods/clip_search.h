#pragma once
/// Scales of a weight's rectangles: by the scheme's own rule, or searched for the least squared error.

#include <cstdint>
#include <span>
#include <vector>

#include "format/scale_candidates.h"
#include "narrow/quantize.h"

namespace narrow {

/// The candidates of scale_candidate, each once; none where all values are zero, since any scale is exact then.
void scale_candidates(const Scheme& scheme, const Extremes& extremes, float outer, std::vector<ScaleAndZero>& candidates);

/// Writes the scales and zero points of grid column `grid_col` into q, from the values that its rectangles have now.
/// values: fp32 [n, width] with `stride` elements from row to row, the columns of that grid column; q.outer_scale is set already.
void set_scales(const float* values, std::int64_t width, std::int64_t stride, QuantizedTensor& q, std::int64_t grid_col);

/// Then lowers (or raises) each of them to the candidate with the least sum over the rectangle of importance[col] * (x - q(x))^2, ties to
/// the rule's own. importance: one per column of `values`, or empty: all alike.
void search_scales(const float* values, std::int64_t width, std::int64_t stride, std::span<const double> importance, QuantizedTensor& q,
                   std::int64_t grid_col);

}  // namespace narrow
