#pragma once
/// X^T X of inputs: the Hessian of a Linear layer's squared output error, up to a factor.

#include <vector>

#include "narrow/tensor.h"

namespace narrow {

/// sum += x^T x of contiguous fp32 rows [tokens, k]; an empty sum starts at zero. Products of a part of the rows are summed in fp32, parts
/// in fp64; the same bits for any number of threads.
void add_second_moment(const Tensor& x, std::vector<double>& sum);

/// sum += y^T x of contiguous fp32 rows [tokens, n] and [tokens, k]: [n, k].
void add_cross_moment(const Tensor& y, const Tensor& x, std::vector<double>& sum);

}  // namespace narrow
