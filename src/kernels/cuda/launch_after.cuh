#pragma once
/// Launches that overlap the end of the kernel before them in the stream: thread blocks come onto the machine while the last ones of that
/// kernel leave it, and wait there until its results are visible. Hopper and newer; elsewhere plain launches.

#include <cuda_runtime.h>

#include "narrow/cuda.h"

namespace narrow::cuda {

/// The first statement of every kernel that launch_after starts: nothing may be read or written before it.
__device__ inline void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename... Params>
int launch_after(void (*kernel)(Params...), std::int64_t blocks, int threads, std::size_t memory, Stream stream, const Params&... args) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace narrow::cuda
