#pragma once
/// The kernel of few rows of A, a configuration of int4_product_mma.cu.

#include "kernels/cuda/int4_product.h"

namespace narrow::cuda {

constexpr int kFewInt4Rows = 16;
int launch_int4_few_rows(const Int4Problem& problem, Stream stream);

}  // namespace narrow::cuda
