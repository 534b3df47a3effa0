#pragma once
/// What GPTQ needs of a layer's input: the order of the columns, and how an error in one of them is made good by those after it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "narrow/matmul.h"

namespace narrow {

/// The factor U of H^-1 = U^T U, upper triangular, for H = X^T X + damping * mean(diag) I in the order of `order`.
struct HessianFactor {
  std::vector<std::int64_t> order;  ///< column c of the factor is column order[c] of the weight
  std::vector<float> upper;         ///< U, [k, k]
  double damping = 0.0;             ///< used
};

/// A layer's second moment, with what is derived from it once for all weights that share the input.
class Hessian {
 public:
  /// second_moment: [k, k], symmetric; empty: no calibration.
  Hessian(std::span<const double> second_moment, std::int64_t k);

  bool is_known() const { return !diagonal_.empty(); }
  const std::vector<double>& diagonal() const { return diagonal_; }
  std::int64_t dead_columns() const;
  /// Nothing where H cannot be factored even with a damping of 1: the caller rounds to nearest. Damping grows tenfold until it can.
  std::optional<HessianFactor> factor(double damping, bool act_order) const;
  /// X^T X + damping * mean(diag) I in fp32, [k, k], in units of the mean diagonal.
  std::vector<float> damped(double damping) const;
  /// M (X^T X + damping * mean(diag) I)^-1 of fp64 [n, k] in the second moment's own units; nothing where it cannot be factored.
  std::optional<std::vector<double>> solve(std::span<const double> m, double damping) const;
  /// tr(E X^T X E^T) of an fp32 [n, k].
  double energy(const Tensor& e) const;

 private:
  std::int64_t k_;
  std::vector<double> moment_;  ///< per token scale does not matter: it is divided by the mean diagonal
  std::vector<double> diagonal_;
  double unit_ = 1.0;        ///< the second moment times this is moment_
  PreparedWeight prepared_;  ///< the same in fp32, for products
};

}  // namespace narrow
