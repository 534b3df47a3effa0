#pragma once
/// The plain problem behind a product of int1 matrices, for tests and benchmarks.

#include "kernels/cuda/bit_product.h"
#include "narrow/cuda_binary.h"

namespace narrow::cuda {

/// Checks everything that matmul checks; throws as it does.
BitProblem int1_problem(const Int1Matrix& x, const Int1Matrix& w, const Tensor& y, const Int1MatmulOptions& options);

}  // namespace narrow::cuda
