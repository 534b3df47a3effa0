#include "methods/hessian.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <Eigen/Cholesky>
#include <Eigen/Core>

namespace narrow {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// H = R R^T with R upper triangular is the Cholesky factorization of H read backwards, and U = R^-1: no inverse of H is formed.
bool factor_backwards(const Matrix& backwards, std::vector<float>& upper) {
  const Eigen::LLT<Matrix> cholesky(backwards);
  if (cholesky.info() != Eigen::Success) return false;
  const Eigen::Index k = backwards.rows();
  Matrix inverse = Matrix::Identity(k, k);
  cholesky.matrixL().solveInPlace(inverse);
  if (!inverse.allFinite()) return false;
  upper.assign(static_cast<std::size_t>(k * k), 0.0f);
  for (Eigen::Index i = 0; i < k; ++i)
    for (Eigen::Index j = i; j < k; ++j) upper[static_cast<std::size_t>(i * k + j)] = static_cast<float>(inverse(k - 1 - i, k - 1 - j));
  return true;
}

}  // namespace

Hessian::Hessian(std::span<const double> second_moment, std::int64_t k) : k_(k) {
  if (second_moment.empty()) return;
  diagonal_.resize(static_cast<std::size_t>(k));
  double mean = 0.0;
  for (std::int64_t i = 0; i < k; ++i) mean += second_moment[static_cast<std::size_t>(i * k + i)] / static_cast<double>(k);
  unit_ = mean > 0.0 && std::isfinite(mean) ? 1.0 / mean : 1.0;
  moment_.assign(second_moment.begin(), second_moment.end());
  const Tensor narrowed = Tensor::empty(DType::kF32, {k, k});
  for (std::size_t i = 0; i < moment_.size(); ++i) {
    moment_[i] *= unit_;
    narrowed.as<float>()[i] = static_cast<float>(moment_[i]);
  }
  for (std::int64_t i = 0; i < k; ++i) diagonal_[static_cast<std::size_t>(i)] = moment_[static_cast<std::size_t>(i * k + i)];
  prepared_ = prepare(narrowed);
}

std::int64_t Hessian::dead_columns() const { return std::count(diagonal_.begin(), diagonal_.end(), 0.0); }

std::optional<HessianFactor> Hessian::factor(double damping, bool act_order) const {
  HessianFactor result;
  result.order.resize(static_cast<std::size_t>(k_));
  std::iota(result.order.begin(), result.order.end(), std::int64_t{0});
  if (act_order)
    std::stable_sort(result.order.begin(), result.order.end(), [&](std::int64_t a, std::int64_t b) {
      return diagonal_[static_cast<std::size_t>(a)] > diagonal_[static_cast<std::size_t>(b)];
    });
  if (!std::all_of(moment_.begin(), moment_.end(), [](double value) { return std::isfinite(value); })) return std::nullopt;
  Matrix backwards(k_, k_);
  for (std::int64_t i = 0; i < k_; ++i)
    for (std::int64_t j = 0; j < k_; ++j)
      backwards(k_ - 1 - i, k_ - 1 - j) =
          moment_[static_cast<std::size_t>(result.order[static_cast<std::size_t>(i)] * k_ + result.order[static_cast<std::size_t>(j)])];
  const Eigen::VectorXd diagonal = backwards.diagonal();
  constexpr double kSmallest = 1e-6, kLargest = 1.0;
  for (double share = damping;; share = std::max(10.0 * share, kSmallest)) {
    for (Eigen::Index i = 0; i < k_; ++i) backwards(i, i) = (diagonal[i] == 0.0 ? 1.0 : diagonal[i]) + share;  // a dead column stands alone
    result.damping = share;
    if (factor_backwards(backwards, result.upper)) return result;
    if (share >= kLargest) return std::nullopt;
  }
}

std::vector<float> Hessian::damped(double damping) const {
  std::vector<float> h(moment_.begin(), moment_.end());
  for (std::int64_t i = 0; i < k_; ++i) h[static_cast<std::size_t>(i * k_ + i)] += static_cast<float>(damping);
  return h;
}

std::optional<std::vector<double>> Hessian::solve(std::span<const double> m, double damping) const {
  Matrix h = Eigen::Map<const Matrix>(moment_.data(), k_, k_);
  h.diagonal().array() += damping;
  const Eigen::LLT<Matrix> cholesky(h);
  if (cholesky.info() != Eigen::Success) return std::nullopt;
  const Eigen::Index n = static_cast<Eigen::Index>(m.size()) / k_;
  const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic> solved =
      cholesky.solve(Eigen::Map<const Matrix>(m.data(), n, k_).transpose());
  if (!solved.allFinite()) return std::nullopt;
  std::vector<double> result(m.size());
  Eigen::Map<Matrix>(result.data(), n, k_) = unit_ * solved.transpose();
  return result;
}

double Hessian::energy(const Tensor& e) const {
  if (!is_known()) return 0.0;
  const Tensor product = matmul(e, prepared_);
  const float *left = e.as<float>(), *right = product.as<float>();
  double sum = 0.0;
  for (std::int64_t i = 0; i < e.size(); ++i) sum += static_cast<double>(left[i]) * static_cast<double>(right[i]);
  return sum;
}

}  // namespace narrow
