#pragma once
/// Products that the public header does not offer: by a row of the table that the caller chose, for tests and benchmarks; with sums in
/// fp64.

#include "kernels/matmul.h"

namespace narrow {

WeightView view_of(const PreparedWeight& w);
ActivationView view_of(const QuantizedTensor& x);
/// Packs and runs on all threads. The row must accept the problem.
void run_matmul(const MatmulProblem& problem, const MatmulKernel& kernel);
/// matmul of fp32, whose bits depend on neither instruction set nor device: MatmulProblem::in_fp64.
Tensor matmul_in_fp64(const Tensor& x, const PreparedWeight& w, const MatmulOptions& options);

}  // namespace narrow
