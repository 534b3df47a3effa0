#pragma once
/// What all launches share: chunked views of a matrix, the checks that the fast kernels make, the launch itself.

#include <cuda_runtime.h>

#include "format/scale_rule.h"
#include "kernels/cuda/quantize.h"

namespace narrow::cuda {

/// A matrix cut into chunks of neighbouring elements, counted row by row.
struct ChunkedMatrix {
  const void* data;
  std::int64_t chunks;
  std::int64_t chunks_per_row;
  std::int64_t row_stride;  // in elements
  bool contiguous;

  /// Rows that lie one after the other count as one row: their length need not be a multiple of the chunk.
  static ChunkedMatrix of(const QuantizeProblem& problem, int per) {
    const bool contiguous = problem.row_stride == problem.cols || problem.rows == 1;
    return {problem.x, problem.rows * problem.cols / per, problem.cols / per, problem.row_stride, contiguous};
  }

  /// The element at which a chunk starts.
  template <int kPer>
  __device__ std::int64_t offset(std::int64_t chunk) const {
    if (contiguous) return chunk * kPer;
    const std::int64_t row = chunk / chunks_per_row;
    return row * row_stride + (chunk - row * chunks_per_row) * kPer;
  }

  /// The thread block's place: backwards where a pass over the same data has gone before, whose end is still in the cache.
  __device__ static std::int64_t block_of_grid(bool backwards) { return backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x; }
};

/// Rounding and overflow that the fast kernels know.
inline bool is_plain_request(const QuantizeProblem& problem) {
  return problem.rounding == Rounding::kNearestEven && problem.overflow == Overflow::kSaturate && problem.rows > 0 && problem.cols > 0;
}

inline bool is_aligned(const void* pointer, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0; }

/// Whole chunks, 16-byte aligned in x and code_bytes-aligned in the codes.
inline bool has_aligned_chunks(const QuantizeProblem& problem, int per, int code_bytes) {
  const bool contiguous = problem.row_stride == problem.cols || problem.rows == 1;
  const std::int64_t per_16_bytes = problem.dtype == DType::kF32 ? 4 : 8;
  if (contiguous ? problem.rows * problem.cols % per != 0 : problem.cols % per != 0 || problem.row_stride % per_16_bytes != 0) return false;
  return is_aligned(problem.x, 16) && is_aligned(problem.codes, static_cast<std::size_t>(code_bytes));
}

/// fp32, fp16, bf16 as 0, 1, 2.
inline int type_index(DType dtype) { return dtype == DType::kF32 ? 0 : (dtype == DType::kF16 ? 1 : 2); }

/// An attribute of the current device; fallback where it cannot be read.
inline int device_attribute(cudaDeviceAttr attribute, int fallback) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return fallback;
  return value;
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount, 1); }

/// For kernels of launch_overlapped: the first thing they do. Their thread blocks may be there before the kernel in front has ended (its
/// last ones leave room), so that starting costs nothing; nothing may be read or written before this has returned.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Enqueues a kernel; an empty grid is no work. Returns CUDA's error code.
template <bool kOverlapped = false, typename... Params, typename... Args>
int launch_kernel(void (*kernel)(Params...), std::int64_t blocks, int threads, Stream stream, const Args&... args) {
  if (blocks <= 0) return cudaSuccess;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute overlapped{};
  overlapped.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlapped.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlapped;
  config.numAttrs = kOverlapped && device_attribute(cudaDevAttrComputeCapabilityMajor, 0) >= 9 ? 1 : 0;
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

/// launch_kernel of a kernel that calls wait_for_previous_kernel.
template <typename... Params, typename... Args>
int launch_overlapped(void (*kernel)(Params...), std::int64_t blocks, int threads, Stream stream, const Args&... args) {
  return launch_kernel<true>(kernel, blocks, threads, stream, args...);
}

}  // namespace narrow::cuda
