/// Attention by its definition, one query at a time, in fp64.

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"

namespace narrow::reference {
namespace {

bool accepts(const AttentionProblem&) { return true; }

std::size_t scratch_bytes(const AttentionProblem& problem, std::int64_t, std::int64_t end) {
  return static_cast<std::size_t>(problem.end_key(end - 1)) * sizeof(double);
}

void attend(const AttentionProblem& problem, std::int64_t token, const float* q, float* out, double* p) {
  const std::int64_t first = problem.first_key(token), end = problem.end_key(token);
  double largest = -HUGE_VAL, total = 0.0;
  for (std::int64_t j = first; j < end; ++j) {
    p[j] = 0.0;
    for (std::int64_t d = 0; d < problem.head_dim; ++d)
      p[j] += static_cast<double>(q[d]) * static_cast<double>(problem.k[j * problem.kv_stride + d]);
    p[j] *= static_cast<double>(problem.scale);
    largest = std::max(largest, p[j]);
  }
  for (std::int64_t j = first; j < end; ++j) total += p[j] = std::exp(p[j] - largest);
  for (std::int64_t d = 0; d < problem.head_dim; ++d) {
    double sum = 0.0;
    for (std::int64_t j = first; j < end; ++j) sum += p[j] * static_cast<double>(problem.v[j * problem.kv_stride + d]);
    out[d] = static_cast<float>(sum / total);
  }
}

void run(const AttentionProblem& problem, std::int64_t begin, std::int64_t end, std::byte* scratch) {
  for (std::int64_t token = begin; token < end; ++token)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      attend(problem, token, problem.q + token * problem.q_stride + head * problem.head_dim,
             problem.out + token * problem.out_stride + head * problem.head_dim, reinterpret_cast<double*>(scratch));
}

}  // namespace

const AttentionKernel kAttention{"ref_attention", Isa::kScalar, accepts, scratch_bytes, run};

}  // namespace narrow::reference
