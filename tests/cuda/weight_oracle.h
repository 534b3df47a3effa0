#pragma once
/// The definition of a product with a weight in any scheme, in double precision from the canonical bytes: what the GPU tests compare with.

#include "kernels/cuda/weight_product.h"

namespace narrow::cuda::testing {

/// Worst cases over all elements of a product.
struct WeightErrors {
  double worst_share = 0.0;        ///< largest |y - exact| / (bound of that element); at most 1 is right
  unsigned long long outside = 0;  ///< elements beyond their bound, or NaN where the exact value is a number
};

/// Compares y of the problem with the exact product of x and the canonical weight (is_prepared false).
WeightErrors compare_with_oracle(const WeightProblem& problem, const WeightView& canonical, Stream stream);

}  // namespace narrow::cuda::testing
