#pragma once
/// A product by a row of the table that the caller chose: for tests and benchmarks.

#include "kernels/matmul.h"

namespace narrow {

WeightView view_of(const PreparedWeight& w);
ActivationView view_of(const QuantizedTensor& x);
/// Packs and runs on all threads. The row must accept the problem.
void run_matmul(const MatmulProblem& problem, const MatmulKernel& kernel);

}  // namespace narrow
