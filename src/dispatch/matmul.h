#pragma once
/// The choice of a matmul kernel: the first row that runs here and accepts the problem.

#include "kernels/matmul.h"

namespace narrow {

const MatmulKernel& find(const MatmulProblem& problem);

}  // namespace narrow
