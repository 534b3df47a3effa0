#pragma once
/// The choice of kernels for attention and for the sums over logits: the first row that runs here and accepts the problem.

#include "kernels/attention.h"
#include "kernels/logits.h"

namespace narrow {

const AttentionKernel& find(const AttentionProblem& problem);
const LogitsKernel& find_logits();

}  // namespace narrow
