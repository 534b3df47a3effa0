#pragma once
/// The plain problem behind a product with a prepared weight, for tests and benchmarks.

#include <optional>

#include "kernels/cuda/weight_product.h"
#include "narrow/cuda_weights.h"

namespace narrow::cuda {

/// How weights of a scheme lie in chunks; nothing where they cannot.
std::optional<WeightLayoutInfo> weight_layout(const Scheme& scheme, std::int64_t n, std::int64_t k);
WeightView weight_view(const DeviceWeight& w);
/// Checks everything that matmul checks; throws as it does. x is the caller's, in any order and alignment.
WeightProblem weight_problem(const Tensor& x, const DeviceWeight& w, const Tensor& y, const WeightMatmulOptions& options);

}  // namespace narrow::cuda
