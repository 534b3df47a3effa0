#pragma once
/// Scores of logits that are on a CUDA device: what comes back is a few numbers per token, not a vocabulary.

#include <span>
#include <vector>

#include "kernels/logits.h"
#include "narrow/tensor.h"

namespace narrow::model {

/// A row of logits, and the token whose logit is asked for.
struct LogitRow {
  std::int32_t row = 0, token = 0;
};
struct RowSums {
  LogitSums sums;
  float logit = 0.0f;
};
/// Of each of the rows of x [.., vocabulary]; y: other logits for LogitSums::difference, of the same shape and device, or null. Waits.
std::vector<RowSums> sums_on_device(const Tensor& x, const Tensor* y, std::span<const LogitRow> rows);

}  // namespace narrow::model
