#pragma once
/// Learned rounding: codes and scales of a quantized weight, improved one at a time by what they do to the layer's output.

#include "methods/hessian.h"
#include "narrow/quantize.h"

namespace narrow {

/// Lowers tr(E H E^T), E = w - q, H = X^T X + damping * mean(diag) I, by at most `sweeps` rounds of coordinate descent: each code moves to
/// the best one given all others, then each scale and zero point of a row's block to its best given all codes. The loss never rises.
/// w: fp32 [n, k].
void refine(const Tensor& w, const Hessian& hessian, double damping, int sweeps, QuantizedTensor& q);

}  // namespace narrow
