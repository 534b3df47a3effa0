#pragma once
/// The listed instantiations of the Hopper main loop.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string_view>

#include "kernels/cuda/byte_product.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/byte_product.cuh"

namespace narrow::cuda::sm90 {

using ByteKernel = void (*)(ByteParams, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap);

/// One compiled kernel.
struct ByteInstance {
  std::string_view config;  ///< its name in byte_configs()
  ByteScaling scaling;
  BytePair pair;
  ByteKernel kernel;
  ByteKernel plain, shifted, bytes, sums;  ///< of Results; null: `kernel`. Of integers they take B spread (DirectOf)
  int shared_bytes, threads;
  bool byte_boxes;
  bool plain_is_direct;
};

template <class T>
constexpr ByteInstance instance(std::string_view config) {
  ByteInstance made{config,     T::kScaling, T::kPair,      byte_product<T, Results::kAny>,   {}, {}, {}, {},
                    T::kShared, T::kThreads, T::kByteBoxes, DirectOf<T, Results::kPlain>::kOn};
  if constexpr (T::kPair == BytePair::kE4m3E4m3 && !T::kSwapped) made.plain = byte_product<T, Results::kPlain>;
  if constexpr (kHasDirect<T>) {
    made.plain = byte_product<T, Results::kPlain>;
    if constexpr (!T::kCol32) made.shifted = byte_product<T, Results::kShifted>;
    made.bytes = byte_product<T, Results::kBytes>;
    made.sums = byte_product<T, Results::kSums>;
  }
  return made;
}

std::span<const ByteInstance> fp8_tile_scaled();        ///< 1x128 x 128x128, e4m3
std::span<const ByteInstance> fp8_tile_scaled_small();  ///< the same, of at most 128x64
std::span<const ByteInstance> fp8_other();              ///< the other scalings and pairs of formats
std::span<const ByteInstance> int8_instances();

/// The kernel of at most 16 rows of A. B's k is padded by zeros to a multiple of 16, as its pitch says.
bool takes_few_rows(const ByteProblem& problem);
int launch_few_rows(const ByteProblem& problem, Stream stream);

}  // namespace narrow::cuda::sm90
