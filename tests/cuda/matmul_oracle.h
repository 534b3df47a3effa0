#pragma once
/// The definition of an fp8 product in double precision, one thread per element: what the GPU tests compare with.

#include <cstdint>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda::testing {

/// Worst cases over all elements of a product.
struct MatmulErrors {
  double worst_share = 0.0;        ///< largest |y - exact| / (bound of that element); at most 1 is right
  double worst_relative = 0.0;     ///< largest |y - exact| / sum |x||w|, before the output's rounding is allowed for
  unsigned long long outside = 0;  ///< elements beyond their bound, or not finite
  unsigned long long touched = 0;  ///< elements of D outside the product that are not poison
};

/// Compares D of the problem with the exact product. kPoison bytes fill D's unwritten rows. `old` holds D before, for accumulate, or null.
MatmulErrors compare_with_oracle(const ByteProblem& problem, const float* old, Stream stream);

inline constexpr int kMatmulPoison = 0xA5;  // of Guarded

}  // namespace narrow::cuda::testing
