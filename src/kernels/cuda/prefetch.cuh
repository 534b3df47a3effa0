#pragma once
/// Bytes on their way into the second-level cache before they are asked for.
///
/// A kernel may do this before it waits for the kernel in front (launch.cuh): nothing is read, and what that kernel still writes is
/// written to the same cache. So the first thread blocks, which come while the last ones of the kernel in front leave, have their input
/// near when they may read it: 2 to 7% of a matrix of 4096x4096. Thread blocks that come later gain nothing and pay for it.

#include <cstdint>

#include <cuda_runtime.h>

namespace narrow::cuda {

/// Thread blocks that come before the kernel in front has ended: those of 256 threads that an H200 holds at once.
inline constexpr unsigned kEarlyBlocks = 8 * 132;

/// By `threads` threads together; `thread` counts them.
__device__ inline void prefetch_lines(const void* from, std::uint32_t bytes, unsigned thread, unsigned threads) {
#if __CUDA_ARCH__ >= 900
  constexpr std::uint32_t kLine = 128;
#pragma unroll 1
  for (std::uint32_t at = thread * kLine; at < bytes; at += threads * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + at));
#endif
}

/// The same by one thread, of whole groups of 16 aligned bytes: from the one that holds the first byte, a multiple of 16 bytes.
__device__ inline void prefetch_bulk(const void* from, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(reinterpret_cast<std::uintptr_t>(from) / 16 * 16), "r"(bytes) : "memory");
#endif
}

}  // namespace narrow::cuda
