#pragma once
/// Which rows of a batch go through which expert.

#include <cstdint>
#include <vector>

#include "narrow/model.h"

namespace narrow::model {

/// The rows that an expert sees, in order, and the share of its output that each of them takes.
struct Route {
  std::vector<std::int64_t> rows;
  std::vector<float> shares;
};

/// The routes of all experts. logits: fp32 [rows, experts]. p = softmax of a row; it goes to the experts with the largest p (of equal ones
/// the first), with p as the share, or p over the sum of those chosen.
std::vector<Route> route_rows(const Tensor& logits, const ExpertsConfig& experts);

/// The rows of x [rows, k] that a route names.
Tensor routed_rows(const Tensor& x, const Route& route);
/// sum[row] += share * y of every row of a route; y: its rows, [route.rows, k].
void add_routed(const Tensor& sum, const Tensor& y, const Route& route);

}  // namespace narrow::model
