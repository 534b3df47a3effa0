#pragma once
/// The machine's copy bandwidth, against which memory-bound operations are judged.

#include <cstddef>

namespace narrow::bench {

/// Bytes read and written per second, in GB/s, by copying `bytes` on all OpenMP threads; the better of plain and
/// non-temporal stores, the median of `repeat` runs of each.
double copy_bandwidth(std::size_t bytes, int repeat);

/// Seconds of one such copy between 64-byte aligned buffers, around the caches: to alternate with what is measured, where the
/// memory is shared and its speed changes by the second.
double copy_seconds(std::byte* to, const std::byte* from, std::size_t bytes);

/// Seconds of one fill around the caches, on all threads: what writing alone takes. 64-byte aligned.
double fill_seconds(std::byte* to, std::size_t bytes);

}  // namespace narrow::bench
