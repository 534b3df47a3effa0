#pragma once
/// The kernels behind the configurations of products with int4 weights.

#include "kernels/cuda/int4_product.h"

namespace narrow::cuda {

/// Compute capability 8.0 and later: square tiles of 128 or 64, and at most 16 rows of A per pass over the weight.
int launch_int4_mma(const Int4Problem& problem, int tile, Stream stream);
constexpr int kFewInt4Rows = 16;
int launch_int4_few_rows(const Int4Problem& problem, Stream stream);

/// Hopper alone, tiles of 64 or 128 rows of A: sm90/int4_product.cu. Scales of 128 or 256 columns, or of all of them.
int launch_int4_hopper(const Int4Problem& problem, int tokens, Stream stream);

}  // namespace narrow::cuda
