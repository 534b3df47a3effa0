/// Sums over a row of logits by their definition, in fp64.

#include <algorithm>
#include <cmath>

#include "kernels/logits.h"

namespace narrow::reference {
namespace {

LogitSums run(const float* x, const float* y, std::int64_t count) {
  LogitSums sums;
  sums.largest = std::max_element(x, x + count) - x;
  const double shift = static_cast<double>(x[sums.largest]);
  double total = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double e = std::exp(static_cast<double>(x[i]) - shift);
    total += e;
    if (y != nullptr) sums.difference += e * (static_cast<double>(x[i]) - static_cast<double>(y[i]));
  }
  sums.log_sum = shift + std::log(total);
  sums.difference /= total;
  return sums;
}

}  // namespace

const LogitsKernel kLogits{"ref_logits", Isa::kScalar, run};

}  // namespace narrow::reference
