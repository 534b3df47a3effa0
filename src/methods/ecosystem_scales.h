#pragma once
/// Quantizing by the rules of other ecosystems, for files that should hold the codes their own tools would have made.

#include "narrow/interop.h"

namespace narrow {

/// Scales and codes of x [n, k] by the rule of `target`. With b bits, over a group of columns:
///   ct, gptq   symmetric: s = amax / ((2^b - 1) / 2), codes of the whole range [-2^(b-1), 2^(b-1) - 1]
///   ct         asymmetric: z = round(qmin - lo / s), codes round(x / s + z): ties fall where their sum with z is even
///   ct         ranges and quotients are rounded to the weight's type where the scales have that type too, as torch computes
///   ct         MX: the exponent of amax rounded to one bit of mantissa first
///   awq        asymmetric: s = max(max - min, 1e-5) / 15, z = -round(min / s), without zero in the range
/// Every other pair of ecosystem and scheme has narrow's own rule. Scales are rounded to their stored type before they divide. x is finite.
QuantizedTensor quantize_as(Ecosystem target, const Tensor& x, const Scheme& scheme, const QuantizeOptions& options);

}  // namespace narrow
