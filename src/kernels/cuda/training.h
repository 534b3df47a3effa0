#pragma once
/// Training pieces on device pointers; results are CUDA's error codes.

#include <cstdint>

#include "narrow/cuda_training.h"

namespace narrow::cuda {

struct FakeQuantizeBackwardProblem {
  const void* x = nullptr;
  const void* grad_y = nullptr;
  void* grad_x = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0;
  Format format;
  std::int64_t width = 0;  ///< columns of a cell; cols where a row, or the tensor, has one scale
  bool whole_tensor = false;
  const float* scales = nullptr;
  float* grad_scales = nullptr;  ///< null: straight-through alone
  float factor = 1.0f;
  double* row_sums = nullptr;  ///< scratch [rows], of one scale for the tensor
};
int launch_fake_quantize_backward(const FakeQuantizeBackwardProblem& problem, Stream stream);
int launch_unscale(const void* gradient, DType from, const float* scale, void* out, DType to, std::int64_t count, std::uint32_t* flags,
                   Stream stream);
int launch_update_loss_scale(float* scale, std::uint32_t* steps, std::uint32_t* flags, const LossScaleOptions& options, Stream stream);
int launch_update_amax_history(float* history, float* amax, float* scales, std::int64_t tensors, int length,
                               const DelayedScalingOptions& options, float power, Stream stream);

}  // namespace narrow::cuda
