#pragma once
/// Inputs and second moments for tests of methods that read them.

#include <vector>

#include "calibrate/second_moment.h"
#include "io/files.h"

namespace narrow::test {

/// Inputs whose channels are correlated: a random walk along the channels, so that one column can make good another one's error.
inline Tensor correlated_inputs(std::int64_t tokens, std::int64_t k) {
  Tensor x = random_values(DType::kF32, {tokens, k}, 7, 1.0f);
  for (std::int64_t row = 0; row < tokens; ++row)
    for (std::int64_t col = 1; col < k; ++col) x.as<float>()[row * k + col] += 0.9f * x.as<float>()[row * k + col - 1];
  return x;
}

inline std::vector<double> moment_of(const Tensor& x) {
  std::vector<double> moment;
  add_second_moment(x, moment);
  return moment;
}

inline std::vector<double> identity(std::int64_t k) {
  std::vector<double> moment(static_cast<std::size_t>(k * k), 0.0);
  for (std::int64_t i = 0; i < k; ++i) moment[static_cast<std::size_t>(i * k + i)] = 1.0;
  return moment;
}

}  // namespace narrow::test
