#pragma once
/// The listed instantiations of the Hopper fp8 product.

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/cuda/fp8_product.h"
#include "kernels/cuda/sm90/fp8_product.cuh"

namespace narrow::cuda::sm90 {

using Fp8Kernel = void (*)(Fp8Params, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap);

/// One compiled kernel.
struct Fp8Instance {
  int config;  ///< its number in fp8_configs()
  Fp8Scaling scaling;
  Fp8Pair pair;
  Fp8Kernel kernel;
  int shared_bytes, threads;
  int consumer_sums;  ///< fp32 sums of a thread block
};

template <class T>
constexpr Fp8Instance instance(int config) {
  return {config, T::kScaling, T::kPair, fp8_product<T>, T::kShared, T::kThreads, T::kTileM * T::kTileN};
}

std::span<const Fp8Instance> fp8_tile_scaled();  ///< 1x128 x 128x128, e4m3
std::span<const Fp8Instance> fp8_other();        ///< the other scalings and pairs of formats

}  // namespace narrow::cuda::sm90
