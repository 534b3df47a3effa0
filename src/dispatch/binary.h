#pragma once
/// The choice of an int1 kernel: the first row that runs here and accepts the problem.

#include "kernels/binary.h"

namespace narrow {

const BinaryKernel& find(const BinaryProblem& problem);

}  // namespace narrow
