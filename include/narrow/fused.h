#pragma once
/// The neighbours of a product, fused with the quantization of what they give: one pass over memory each.
///
/// Each call equals quantize(y, scheme, {.nonfinite = NonFinite::kSaturate}) of the fp32 tensor y that its equation gives, bit
/// for bit, on every backend and for any number of threads. Every operation of the equations is one IEEE fp32 operation, but for
/// two that are one fused multiply-add: a square and its addition to a sum, and LayerNorm's "* weight + bias". Inputs are widened
/// exactly, sums over a row have one fixed order (format/row_sum.h), and a NaN is the positive quiet one.

#include <cstdint>
#include <optional>

#include "narrow/layout.h"
#include "narrow/quantize.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// What is computed before the quantization, for a row x of n elements.
enum class FusedOp : std::uint8_t {
  kIdentity,    ///< y = x
  kLayerNorm,   ///< y = ((x - mean) * r) * weight + bias,  r = 1 / sqrt(mean((x - mean)^2) + epsilon)
  kRmsNorm,     ///< y = (x * r) * weight,                  r = 1 / sqrt(mean(x^2) + epsilon)
  kAddRmsNorm,  ///< residual = x + residual, rounded to its type and stored; y = RMSNorm of what was stored
  kSiluMul,     ///< y = (x / (1 + exp(-x))) * up
  kGelu,        ///< y = x * Phi(x)
  kGeluTanh,    ///< y = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
};

struct FusedInput {
  FusedOp op = FusedOp::kIdentity;
  Tensor x;                        ///< [..., n] fp32, fp16 or bf16; the gate of kSiluMul
  std::optional<Tensor> other{};   ///< kSiluMul: up. kAddRmsNorm: the residual, contiguous, updated in place. x's shape and type
  std::optional<Tensor> weight{};  ///< of the norms: [n], fp32, fp16 or bf16; none means ones
  std::optional<Tensor> bias{};    ///< of kLayerNorm: [n], weight's type; none means zeros
  float epsilon = 1e-5f;
  /// Static quantization: one scale (and zero point) per cell of the scale grid, as in QuantizeOptions.
  std::optional<Tensor> scales{};
  std::optional<Tensor> zero_points{};
};

/// Codes that do not lie row by row. Scales and zero points do, as in QuantizedTensor.
struct LaidOutTensor {
  Scheme scheme;
  Shape shape;
  Layout layout = Layout::kRow;
  Buffer codes;  ///< of every matrix layout_size(layout, rows, cols) bytes
  Buffer scales;
  Buffer zero_points;
};

/// Schemes: one scale per row or per 1xB block; with static scales also one for the tensor. No outer scale.
QuantizedTensor fused_quantize(const FusedInput& input, const Scheme& scheme);
/// The same into memory that is there: buffers of `out` that have the right size are written, others replaced.
void fused_quantize(const FusedInput& input, const Scheme& scheme, QuantizedTensor& out);
/// Straight into another layout: 8-bit formats.
LaidOutTensor fused_quantize(const FusedInput& input, const Scheme& scheme, Layout layout);
void fused_quantize(const FusedInput& input, const Scheme& scheme, Layout layout, LaidOutTensor& out);

/// The codes row by row again.
QuantizedTensor to_rows(const LaidOutTensor& x);

}  // namespace narrow
