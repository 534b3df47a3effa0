#pragma once
/// The largest magnitude of a whole tensor without a host round trip: one kernel leaves a partial result per thread block,
/// and every thread block of the next kernel folds them. No atomics, no memory that must start as zero.

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {

inline constexpr int kMostPartials = 4096;
inline std::size_t tensor_amax_workspace() { return kMostPartials * sizeof(float); }

/// Enqueues the first kernel; partials lie in the problem's workspace. Requires chunks of 16 bytes.
int launch_tensor_amax(const QuantizeProblem& problem, const float*& partials, int& count, Stream stream);

/// The fold: every thread of the block gets the result. blockDim.x threads, a multiple of 32.
__device__ inline float fold_partials(const float* partials, int count) {
  __shared__ std::uint32_t warps[32];
  std::uint32_t magnitude = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    magnitude = max(magnitude, __float_as_uint(__ldcg(partials + i)));
  magnitude = __reduce_max_sync(0xFFFFFFFFu, magnitude);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = magnitude;
  __syncthreads();
  magnitude = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) magnitude = max(magnitude, warps[i]);
  return __uint_as_float(magnitude);
}

/// Where a scheme's outer scale comes from: given, or made of the tensor's amax and stored by the first thread block.
struct OuterScale {
  const float* given;
  float* stored;
  const float* partials;
  int count;

  __device__ float read(const Format& element) const {
    if (given != nullptr) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *stored = *given;
      return *given;
    }
    Scheme scheme;
    scheme.element = element;
    scheme.scale = kFp8E4m3;
    const float outer = outer_scale_from_amax(scheme, fold_partials(partials, count));
    if (blockIdx.x == 0 && threadIdx.x == 0) *stored = outer;
    return outer;
  }
};

}  // namespace narrow::cuda
