#pragma once
/// Quantized weights between two files: their values, whether two are the same, and scales in another type.

#include <optional>

#include "io/interop.h"

namespace narrow {

/// The values in fp32, [n, k].
Tensor values_of(const io::InteropTensor& tensor);

/// The same codes, zero points, order and outer scale, and scales of the same value, whatever type they are stored in.
bool holds_the_same(const io::InteropTensor& a, const io::InteropTensor& b);

/// The same tensor with scales of another floating type; nothing where one of them would round.
std::optional<io::InteropTensor> with_scale_format(const io::InteropTensor& tensor, const Format& scale);

}  // namespace narrow
