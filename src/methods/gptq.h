#pragma once
/// GPTQ: columns are rounded one after the other, and the error of each is made good in the columns after it.

#include "methods/hessian.h"
#include "narrow/quantize.h"

namespace narrow {

/// Codes and scales of w, fp32 [n, k]. Without a factor every column is rounded to nearest; with `clip` scales are searched, weighted by
/// 1 / U_cc^2 (what a squared error in column c costs), by `importance` without a factor.
/// Scales of a rectangle come from the values that its columns have when the first of them is reached; in another order than the file's all
/// come from w beforehand, so that the file's layout does not change.
QuantizedTensor quantize_columns(const Tensor& w, const Scheme& scheme, const HessianFactor* factor, bool clip,
                                 std::span<const double> importance);

}  // namespace narrow
