#include "tensor/transposed.h"

#include <algorithm>

namespace narrow {

Tensor transposed(const Tensor& x) {
  constexpr std::int64_t kStrip = 16;  // columns whose results a thread writes side by side: one line of each stays in the cache
  const std::int64_t cols = x.shape().back(), rows = cols > 0 ? x.size() / cols : 0;
  Tensor result = Tensor::empty(DType::kF32, {cols, rows});
  const float* from = x.as<float>();
  float* to = result.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < cols; first += kStrip)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t col = first; col < std::min(cols, first + kStrip); ++col) to[col * rows + row] = from[row * cols + col];
  return result;
}

}  // namespace narrow
