#pragma once
/// The measured choice for a product of one-byte elements, where there is one.

#include <optional>

#include "kernels/cuda/byte_product.h"
#include "narrow/tuned_kernels.h"

namespace narrow::cuda {

/// The problem as files of choices name it, without a kernel.
TunedKernel product_of(const ByteProblem& problem);
std::optional<TunedKernel> tuned_kernel(const ByteProblem& problem);

}  // namespace narrow::cuda
