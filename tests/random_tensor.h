#pragma once
/// Normal values for tests of operations.

#include <random>
#include <utility>

#include "narrow/tensor.h"

namespace narrow::test {

inline Tensor random_tensor(Shape shape, unsigned seed, float spread = 1.0f) {
  Tensor x = Tensor::empty(DType::kF32, std::move(shape));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = normal(generator);
  return x;
}

}  // namespace narrow::test
