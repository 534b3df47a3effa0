#include "calibrate/second_moment.h"

#include <algorithm>

#include "narrow/matmul.h"

namespace narrow {

void add_second_moment(const Tensor& x, std::vector<double>& sum) {
  constexpr std::int64_t kPart = 1024;  // rows whose fp32 sum is exact enough
  constexpr std::int64_t kStrip = 64, kPanel = 128;
  const std::int64_t cols = x.shape().back(), rows = cols > 0 ? x.size() / cols : 0;
  sum.resize(static_cast<std::size_t>(cols * cols), 0.0);
  const float* values = x.as<float>();
  for (std::int64_t begin = 0; begin < rows; begin += kPart) {
    const std::int64_t count = std::min(kPart, rows - begin);
    const Tensor transposed = Tensor::empty(DType::kF32, {cols, count});
    float* out = transposed.as<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t first = 0; first < cols; first += kStrip)
      for (std::int64_t row = 0; row < count; ++row)
        for (std::int64_t col = first; col < std::min(cols, first + kStrip); ++col)
          out[col * count + row] = values[(begin + row) * cols + col];
    for (std::int64_t first = 0; first < cols; first += kPanel) {  // what is below the diagonal is mirrored above it
      const std::int64_t width = std::min(kPanel, cols - first), below = cols - first;
      const Tensor rest = Tensor::borrow(static_cast<const void*>(out + first * count), DType::kF32, {below, count});
      const Tensor panel = Tensor::borrow(static_cast<const void*>(out + first * count), DType::kF32, {width, count});
      const Tensor product = matmul(rest, prepare(panel));
      const float* part = product.as<float>();
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < below; ++i)
        for (std::int64_t j = 0; j < std::min(width, i + 1); ++j) {
          double& entry = sum[static_cast<std::size_t>((first + i) * cols + first + j)];
          entry += static_cast<double>(part[i * width + j]);
          sum[static_cast<std::size_t>((first + j) * cols + first + i)] = entry;
        }
    }
  }
}

}  // namespace narrow
