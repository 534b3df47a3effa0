#pragma once
/// The choice of an attention kernel: the first row that runs here and accepts the problem.

#include "kernels/attention.h"

namespace narrow {

const AttentionKernel& find(const AttentionProblem& problem);

}  // namespace narrow
