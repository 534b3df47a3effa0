#pragma once
/// The definition of an int8 product on canonical codes, one thread per element, in 64-bit integers and single IEEE operations.

#include <cstdint>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda::testing {

/// One side as it was quantized: rows of k codes without gaps.
struct CanonicalSide {
  const std::uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;  ///< of asymmetric codes, which are unsigned
  int step = 0;                               ///< of scales and zero points: 1 per row, 0 for all
};

/// Elements of D that are not what the definition gives: bit for bit, or where there is GELU or SiLU within a few units of the last place.
unsigned long long count_wrong(const CanonicalSide& x, const CanonicalSide& w, const ByteProblem& problem, Stream stream);

}  // namespace narrow::cuda::testing
