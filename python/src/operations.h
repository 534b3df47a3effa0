#pragma once
/// What the bindings of operations share: words for options, quantized tensors over arrays of any framework.

#include "array.h"
#include "narrow/quantize.h"

namespace narrow::python {

Rounding parse_rounding(std::string_view text);
Overflow parse_overflow(std::string_view text);

/// A quantized tensor over arrays that stay where they are.
QuantizedTensor over_arrays(const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
                            const std::optional<Array>& zero_points, float outer_scale);

}  // namespace narrow::python
