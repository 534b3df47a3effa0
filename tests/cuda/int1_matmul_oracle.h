#pragma once
/// The definition of an int1 product on canonical codes, one thread per element.

#include <cstdint>

#include "kernels/cuda/bit_product.h"

namespace narrow::cuda::testing {

/// One side as it was quantized: rows of k bits, each starting on a byte.
struct CanonicalBits {
  const std::uint8_t* codes = nullptr;
  const float* scales = nullptr;
  int step = 0;  ///< of scales: 1 per row, 0 for all
};

/// Elements of D that are not what the definition gives: bit for bit, or where there is GELU or SiLU within a few units of the last place.
unsigned long long count_wrong(const CanonicalBits& x, const CanonicalBits& w, const BitProblem& problem, Stream stream);

}  // namespace narrow::cuda::testing
