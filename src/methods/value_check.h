#pragma once
/// The elementary bound of quantization, element by element.

#include <cstdint>

#include "narrow/quantize.h"

namespace narrow {

struct ValueCheck {
  std::int64_t clipped = 0;           ///< as clipped_share counts them
  std::int64_t first_violation = -1;  ///< an element that is not clipped, and further from its code than one step
};

/// x and y = dequantize(q), both fp32. One step of a scale s: of integers s * 2^-fraction_bits, of a codebook its widest
/// gap, of floats max(|x| * 2^-M, s * smallest positive value).
ValueCheck check_values(const Tensor& x, const Tensor& y, const QuantizedTensor& q);

}  // namespace narrow
