#pragma once
/// The layout that fp8 products read, made from canonical codes and scales. Pointers are device memory, results CUDA's error codes.

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

/// Rows of `columns` bytes to rows `pitch` apart, zeros in between.
int launch_pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch, Stream stream);
/// [groups, rows, columns] to [columns, groups, padded], zeros in the padding.
int launch_transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to, std::int64_t padded,
                            Stream stream);

}  // namespace narrow::cuda
