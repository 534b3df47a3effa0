#include "calibrate/second_moment.h"

#include <algorithm>

#include "narrow/matmul.h"
#include "tensor/transposed.h"

namespace narrow {

namespace {

constexpr std::int64_t kPart = 1024;  // rows whose fp32 sum is exact enough

/// Rows begin .. begin + count of x, transposed.
Tensor transposed_rows(const Tensor& x, std::int64_t begin, std::int64_t count) {
  const std::int64_t cols = x.shape().back();
  return transposed(Tensor::borrow(static_cast<const void*>(x.as<float>() + begin * cols), DType::kF32, {count, cols}));
}

}  // namespace

void add_second_moment(const Tensor& x, std::vector<double>& sum) {
  constexpr std::int64_t kPanel = 128;
  const std::int64_t cols = x.shape().back(), rows = cols > 0 ? x.size() / cols : 0;
  sum.resize(static_cast<std::size_t>(cols * cols), 0.0);
  for (std::int64_t begin = 0; begin < rows; begin += kPart) {
    const std::int64_t count = std::min(kPart, rows - begin);
    const Tensor columns = transposed_rows(x, begin, count);
    const float* out = columns.as<float>();
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

void add_cross_moment(const Tensor& y, const Tensor& x, std::vector<double>& sum) {
  const std::int64_t k = x.shape().back(), n = y.shape().back(), rows = k > 0 ? x.size() / k : 0;
  sum.resize(static_cast<std::size_t>(n * k), 0.0);
  for (std::int64_t begin = 0; begin < rows; begin += kPart) {
    const std::int64_t count = std::min(kPart, rows - begin);
    const Tensor product = matmul(transposed_rows(y, begin, count), prepare(transposed_rows(x, begin, count)));
    const float* part = product.as<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < n * k; ++i) sum[static_cast<std::size_t>(i)] += static_cast<double>(part[i]);
  }
}

}  // namespace narrow
