#pragma once
/// Observers and casts over contiguous values; pointers are device memory, results CUDA's error codes.

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

int launch_observe_range(const void* x, DType dtype, std::int64_t count, std::uint32_t* range, Stream stream);
int launch_observe_histogram(const void* x, DType dtype, std::int64_t count, unsigned long long* counts, int bins, float limit,
                             Stream stream);
int launch_convert(const void* x, DType from, void* y, DType to, std::int64_t count, Overflow overflow, Stream stream);

}  // namespace narrow::cuda
