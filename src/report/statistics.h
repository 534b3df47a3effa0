#pragma once
/// What the values of a tensor look like. Sums are taken in fp64 over fixed chunks, which are joined in order:
/// the same bits for any number of threads.

#include <cstdint>
#include <utility>
#include <vector>

#include "narrow/tensor.h"

namespace narrow::report {

/// Whether the values can be read as real numbers: all but complex, the packed 4- and 6-bit and the "fnuz" types.
bool is_measurable(DType dtype);

/// Over the finite values; a tensor without one has zeros throughout.
struct Statistics {
  std::int64_t count = 0;  ///< of all elements
  std::int64_t nans = 0, infinities = 0, zeros = 0;
  double minimum = 0.0, maximum = 0.0, amax = 0.0;
  double mean = 0.0, deviation = 0.0;
  double kurtosis = 0.0;            ///< E(x - mean)^4 / variance^2: 3 for a normal distribution, more for heavier tails
  std::vector<double> column_amax;  ///< of a matrix [.., rows, cols], one per column; empty for rank 0 and 1
};
Statistics measure(const Tensor& x);

/// Columns (input channels of a weight, features of an activation) whose amax is over `factor` times the median one.
struct OutlierColumns {
  double median = 0.0;                                 ///< of the columns' amax
  std::vector<std::pair<std::int64_t, double>> found;  ///< index and amax / median, largest first
};
OutlierColumns outlier_columns(const std::vector<double>& column_amax, double factor);

/// Counts of the finite values in equal bins over [low, high]; values outside are left out.
struct Histogram {
  double low = 0.0, high = 0.0;
  std::vector<std::int64_t> bins;
};
Histogram count_values(const Tensor& x, double low, double high, std::size_t bins);

}  // namespace narrow::report
