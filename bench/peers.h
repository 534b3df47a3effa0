#pragma once
/// The same products by other libraries, where they were found at configure time; 0 where not.

#include <cstdint>

namespace narrow::bench {

/// fp32 x fp32 by OpenBLAS's sgemm, in seconds.
double openblas_time(std::int64_t m, std::int64_t n, std::int64_t k, int threads, bool best);
/// s8 x s8 -> f32 with per-column scales and bias by oneDNN, weights in its own packed layout, in seconds.
double onednn_int8_time(std::int64_t m, std::int64_t n, std::int64_t k, int threads, bool best);

}  // namespace narrow::bench
