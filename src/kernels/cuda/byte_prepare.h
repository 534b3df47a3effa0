#pragma once
/// The layout that products of one-byte elements read, made from canonical codes and scales. Pointers are device memory, results CUDA's
/// error codes.

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

/// Rows of `columns` bytes to rows `pitch` apart, zeros in between; `flip` exchanges bits of every byte.
int launch_pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch,
                    std::uint8_t flip, Stream stream);
/// Sums over the signed codes of rows `pitch` apart, a multiple of 16.
int launch_row_sums(const std::int8_t* codes, std::int64_t rows, std::int64_t columns, std::int64_t pitch, std::int32_t* sums,
                    Stream stream);
/// Unsigned zero points as those of codes whose highest bit was flipped: z - 128.
int launch_signed_zero_points(const std::uint8_t* from, std::int64_t count, std::int32_t* to, Stream stream);
/// [groups, rows, columns] to [columns, groups, padded], zeros in the padding.
int launch_transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to, std::int64_t padded,
                            Stream stream);

}  // namespace narrow::cuda
