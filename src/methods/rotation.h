#pragma once
/// Rotation of the residual stream and of the values' heads by orthogonal matrices that spread every channel over all, folded into weights.

#include "methods/changed_checkpoint.h"

namespace narrow {

/// y = x R for rows x of n values: signs, a Hadamard matrix of the largest power of two in n, and a cosine transform of what is left.
/// Orthogonal, deterministic, n log n. `inverse`: y = x R^T.
void rotate_rows(float* x, std::int64_t rows, std::int64_t n, bool inverse);

/// The changes that rotate the stream: embedding, every layer's weights, the head; norms become one, their factors go into the weights.
/// The values' heads are rotated in v and o. The function stays the same. Throws Unsupported for a tied head.
TensorChanges rotated(const Checkpoint& input);

}  // namespace narrow
