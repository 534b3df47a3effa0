#pragma once
/// The plain problem behind a product, for tests and benchmarks.

#include "kernels/cuda/byte_product.h"
#include "narrow/cuda_matmul.h"

namespace narrow::cuda {

/// Checks everything that matmul checks; throws as it does.
ByteProblem fp8_problem(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options);

}  // namespace narrow::cuda
