#include "model/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace narrow::model {

std::vector<Route> route_rows(const Tensor& logits, const ExpertsConfig& experts) {
  std::vector<Route> routes(static_cast<std::size_t>(experts.count));
  std::vector<std::int64_t> order(routes.size());
  std::vector<double> share(routes.size());
  const std::int64_t rows = logits.shape()[0];
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* l = logits.as<float>() + row * experts.count;
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto chosen_end = order.begin() + experts.per_token;
    std::partial_sort(order.begin(), chosen_end, order.end(),
                      [l](std::int64_t a, std::int64_t b) { return l[a] > l[b] || (l[a] == l[b] && a < b); });
    double all = 0.0, chosen = 0.0;
    for (std::size_t i = 0; i < share.size(); ++i)
      all += share[i] = std::exp(static_cast<double>(l[i]) - static_cast<double>(l[order.front()]));
    for (auto i = order.begin(); i != chosen_end; ++i) chosen += share[static_cast<std::size_t>(*i)];
    const double whole = experts.shares_sum_to_one ? chosen : all;
    for (auto i = order.begin(); i != chosen_end; ++i) {
      Route& route = routes[static_cast<std::size_t>(*i)];
      route.rows.push_back(row);
      route.shares.push_back(static_cast<float>(share[static_cast<std::size_t>(*i)] / whole));
    }
  }
  return routes;
}

Tensor routed_rows(const Tensor& x, const Route& route) {
  const std::int64_t cols = x.shape().back();
  Tensor y = Tensor::empty(DType::kF32, {static_cast<std::int64_t>(route.rows.size()), cols});
  float* to = y.as<float>();
  for (const std::int64_t row : route.rows) to = std::copy_n(x.as<float>() + row * cols, cols, to);
  return y;
}

void add_routed(const Tensor& sum, const Tensor& y, const Route& route) {
  const std::int64_t cols = sum.shape().back();
  for (std::size_t i = 0; i < route.rows.size(); ++i) {
    float* to = sum.as<float>() + route.rows[i] * cols;
    const float* from = y.as<float>() + static_cast<std::int64_t>(i) * cols;
    for (std::int64_t c = 0; c < cols; ++c) to[c] += route.shares[i] * from[c];
  }
}

}  // namespace narrow::model
