#pragma once
/// The choice of a fused kernel: the first row that runs here and accepts the problem.

#include "kernels/fused.h"

namespace narrow {

const FusedKernel& find(const FusedProblem& problem);

}  // namespace narrow
