#pragma once
/// The listed instantiations of the Hopper fp8 product.

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/cuda/byte_product.h"
#include "kernels/cuda/sm90/byte_product.cuh"

namespace narrow::cuda::sm90 {

using ByteKernel = void (*)(ByteParams, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap);

/// One compiled kernel.
struct ByteInstance {
  int config;  ///< its number in byte_configs()
  ByteScaling scaling;
  BytePair pair;
  ByteKernel kernel;
  int shared_bytes, threads;
  int consumer_sums;  ///< fp32 sums of a thread block
};

template <class T>
constexpr ByteInstance instance(int config) {
  return {config, T::kScaling, T::kPair, byte_product<T>, T::kShared, T::kThreads, T::kTileM * T::kTileN};
}

std::span<const ByteInstance> fp8_tile_scaled();  ///< 1x128 x 128x128, e4m3
std::span<const ByteInstance> fp8_other();        ///< the other scalings and pairs of formats

}  // namespace narrow::cuda::sm90
