#pragma once
/// An oracle for conversions that needs no conversion: a float format cuts the magnitudes of fp32 into intervals, one for each code, whose
/// ends follow from decoded values alone. The comparison runs on the device, so that all 2^32 inputs take a second.

#include <cstdint>
#include <vector>

#include "narrow/cuda.h"

namespace narrow::cuda::testing {

struct Intervals {
  int bits;                          ///< of a code; the top one is the sign
  std::vector<std::uint32_t> lower;  ///< [code without sign]: the least fp32 magnitude, as bits, that rounds to it
  std::uint32_t nan[2];              ///< the code of NaN: positive, negative
};

/// Round to nearest even, saturating, of a float format of at most 16 bits.
Intervals intervals_of(const Format& format);

/// x[i] = the fp32 with bits first + i.
void fill_with_bits(const Tensor& x, std::uint32_t first, Stream stream);

/// How many of the packed codes of fill_with_bits(first) differ from the oracle's; `example` gets one such input.
std::int64_t count_differences(const Intervals& intervals, const void* codes, std::uint32_t first, std::int64_t count,
                               std::uint32_t& example, Stream stream);

}  // namespace narrow::cuda::testing
