#pragma once
/// Loads, stores and reductions that the decoder's kernels share.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/decoder/decoder.h"

namespace narrow::cuda {

/// Lets the next kernel's thread blocks come, then waits for the kernels before: nothing that they write may be read earlier.
__device__ inline void begin_after_earlier_kernels() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Enqueues a kernel that calls begin_after_earlier_kernels, in clusters of `cluster` thread blocks.
template <typename... Params>
int launch_chained(void (*kernel)(Params...), std::int64_t blocks, int threads, std::size_t memory, int cluster, Stream stream,
                   const Params&... args) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = memory;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

__device__ inline float saturated_f16(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }

__device__ inline float load_value(const void* data, DType type, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  if (type == DType::kF16) return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

__device__ inline void store_value(void* data, DType type, std::int64_t i, float x) {
  if (type == DType::kF32)
    static_cast<float*>(data)[i] = x;
  else if (type == DType::kF16)
    static_cast<__half*>(data)[i] = __float2half_rn(saturated_f16(x));
  else
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
}

/// Two neighbours, i even.
__device__ inline void store_pair(void* data, DType type, std::int64_t i, float x, float y) {
  if (type == DType::kF32)
    *reinterpret_cast<float2*>(static_cast<float*>(data) + i) = {x, y};
  else if (type == DType::kF16)
    *reinterpret_cast<__half2*>(static_cast<__half*>(data) + i) = __floats2half2_rn(saturated_f16(x), saturated_f16(y));
  else
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(data) + i) = __floats2bfloat162_rn(x, y);
}

/// Four neighbours, i a multiple of four.
__device__ inline float4 load_four(const void* data, DType type, std::int64_t i) {
  if (type == DType::kF32) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const __half*>(data) + i);
  if (type == DType::kF16) {
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(bits.x)), b = __half22float2(reinterpret_cast<const __half2&>(bits.y));
    return {a.x, a.y, b.x, b.y};
  }
  const float2 a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x)),
               b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
  return {a.x, a.y, b.x, b.y};
}

__device__ inline void store_four(void* data, DType type, std::int64_t i, float4 x) {
  if (type == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + i) = x;
  } else if (type == DType::kF16) {
    const __half2 a = __floats2half2_rn(saturated_f16(x.x), saturated_f16(x.y)),
                  b = __floats2half2_rn(saturated_f16(x.z), saturated_f16(x.w));
    *reinterpret_cast<uint2*>(static_cast<__half*>(data) + i) = {reinterpret_cast<const std::uint32_t&>(a),
                                                                 reinterpret_cast<const std::uint32_t&>(b)};
  } else {
    const __nv_bfloat162 a = __floats2bfloat162_rn(x.x, x.y), b = __floats2bfloat162_rn(x.z, x.w);
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(data) + i) = {reinterpret_cast<const std::uint32_t&>(a),
                                                                        reinterpret_cast<const std::uint32_t&>(b)};
  }
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}

/// The sum over the thread block, in one order; `shared` has 32 floats.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
  __syncthreads();
  return x;
}

/// Eight neighbouring elements of a cache's row as they lie there.
template <CacheKind kKind>
struct Eight {
  static constexpr int kWords = bytes_of(kKind) * 2;
  std::uint32_t words[kWords];

  __device__ static Eight load(const std::byte* codes, std::int64_t element) {
    Eight eight;
    const std::byte* from = codes + element * bytes_of(kKind);
    if constexpr (kWords == 2) {
      const uint2 bits = *reinterpret_cast<const uint2*>(from);
      eight.words[0] = bits.x, eight.words[1] = bits.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 bits = reinterpret_cast<const uint4*>(from)[i / 4];
        eight.words[i] = bits.x, eight.words[i + 1] = bits.y, eight.words[i + 2] = bits.z, eight.words[i + 3] = bits.w;
      }
    }
    return eight;
  }

  /// The values, without the row's scale.
  __device__ void unpack(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 pair;
      if constexpr (kKind == CacheKind::kFp32) {
        pair = {__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1])};
      } else if constexpr (kKind == CacheKind::kFp16) {
        pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      } else if constexpr (kKind == CacheKind::kBf16) {
        pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(words[i]));
      } else {
        const std::uint32_t codes = words[i / 2] >> (i % 2 * 16);
        if constexpr (kKind == CacheKind::kInt8) {
          pair = {static_cast<float>(static_cast<std::int8_t>(codes & 0xFFu)),
                  static_cast<float>(static_cast<std::int8_t>(codes >> 8 & 0xFFu))};
        } else {
          std::uint32_t halves;
          asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
          pair = __half22float2(reinterpret_cast<const __half2&>(halves));
        }
      }
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
};

}  // namespace narrow::cuda
