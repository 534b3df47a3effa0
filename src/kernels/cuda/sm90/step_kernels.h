#pragma once
/// The listed instantiations of the decode step.

#include <span>

#include "kernels/cuda/decoder/step.h"

namespace narrow::cuda::sm90 {

/// One compiled kernel.
struct StepInstance {
  WeightKind kind;
  int bits;
  bool bf16;
  bool plain;  ///< has_plain_scales
  void (*kernel)(StepParams);
};

// One list per file.
std::span<const StepInstance> step_integers();
std::span<const StepInstance> step_integers_wide();
std::span<const StepInstance> step_floats();
std::span<const StepInstance> step_floats_wide();
std::span<const StepInstance> step_dense();

}  // namespace narrow::cuda::sm90
