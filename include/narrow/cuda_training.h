#pragma once
/// What quantized and mixed-precision training needs beside the products, on CUDA devices: gradients of fake-quantize, unscaling of
/// gradients, the dynamic loss scale, and delayed scaling for FP8. All state is device memory: nothing waits, and a whole step can be
/// captured into a graph. Sums have one fixed order, so results are the same bits in every run.

#include <cstdint>
#include <optional>

#include "narrow/cuda.h"
#include "narrow/scheme.h"

namespace narrow::cuda {

/// The backward pass of y = s * decode(encode(x / s)), symmetric, with the scales of the forward pass.
struct FakeQuantizeGradients {
  Tensor x;       ///< of the forward pass: fp32, fp16 or bf16, contiguous
  Tensor scales;  ///< fp32, one per cell of the scale grid
  Tensor grad_y;  ///< x's shape and type
  Tensor grad_x;  ///< straight-through: grad_y where |x / s| <= largest, else 0. May be grad_y
  /// Learned step (LSQ), fp32, one per cell: factor * sum of grad_y * (decode(encode(q)) - q), or grad_y * (+-largest)
  /// outside the range, q = x / s.
  std::optional<Tensor> grad_scales{};
  float factor = 1.0f;  ///< LSQ's 1 / sqrt(elements * largest)
};

/// Scratch bytes of the call: 8 per row for a tensor's one scale, else none.
std::size_t fake_quantize_backward_workspace(const Shape& shape, const Scheme& scheme, bool learned_step);
/// Schemes: tensor, row or block granularity, no zero point, no outer scale, up to 16 bits. A NaN in x passes no gradient.
void fake_quantize_backward(const FakeQuantizeGradients& gradients, const Scheme& scheme, Stream stream, Workspace workspace = {});

/// out = gradient * (1 / scale), rounded to out's type; bit 0 of flags is set where a gradient is NaN, bit 1 where one is infinite.
/// scale: one fp32, flags: one u32. out may be the gradient itself.
void unscale_gradient(const Tensor& gradient, const Tensor& scale, const Tensor& out, const Tensor& flags, Stream stream);

struct LossScaleOptions {
  float growth = 2.0f, backoff = 0.5f;
  std::uint32_t interval = 2000;  ///< steps without overflow before the scale grows
};
/// One step of dynamic loss scaling: where flags are set the scale is multiplied by backoff and the count starts anew; else,
/// after `interval` such steps, by growth where that stays finite. flags become 0.
/// scale: one fp32; steps: one u32; flags: one u32.
void update_loss_scale(const Tensor& scale, const Tensor& steps, const Tensor& flags, const LossScaleOptions& options, Stream stream);

struct DelayedScalingOptions {
  float largest = 448.0f;    ///< of the format
  int margin = 0;            ///< s is 2^margin larger than needed
  bool most_recent = false;  ///< s from the newest amax instead of the largest of the history
};
/// Delayed scaling of many tensors at once: history [tensors, length <= 1024] moves by one, amax [tensors] comes first, and
/// scales [tensors] becomes amax / largest * 2^margin; it stays where the history's amax is zero or not finite. amax becomes 0.
/// All fp32; amax is what quantize's statistics accumulate by maximum.
void update_amax_history(const Tensor& history, const Tensor& amax, const Tensor& scales, const DelayedScalingOptions& options,
                         Stream stream);

}  // namespace narrow::cuda
