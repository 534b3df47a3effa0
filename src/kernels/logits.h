#pragma once
/// What evaluation needs of a row of logits: the problem, and the rows of its table.

#include <cstdint>
#include <span>

#include "device/cpu_features.h"

namespace narrow {

struct LogitSums {
  double log_sum = 0.0;      ///< log of the sum of exp(x_i)
  double difference = 0.0;   ///< sum of softmax(x)_i * (x_i - y_i); 0 without y
  std::int64_t largest = 0;  ///< the first index of the largest x
};

/// A row of the table. Pure; y may be null.
struct LogitsKernel {
  const char* name;
  Isa isa;
  LogitSums (*run)(const float* x, const float* y, std::int64_t count);
};

/// The rows, best first; the last is the reference.
std::span<const LogitsKernel> logits_kernels();

namespace reference {
extern const LogitsKernel kLogits;
}  // namespace reference

}  // namespace narrow
