#pragma once
/// Factors on input channels: SmoothQuant's and AWQ's.

#include "methods/channel_links.h"

namespace narrow {

/// What is known of the inputs before anything is quantized.
struct SeenInputs {
  CalibrationStatistics statistics;       ///< of AWQ with second moments
  std::map<std::string, Tensor> samples;  ///< by the first module that shares the input: some tokens [tokens, k]; of a searched strength
};

/// s_j = max|x_j|^a / max|w_j|^(1-a) for every link whose readers are quantized and have their inputs rounded. Without a strength a, the
/// one of 0, 0.05, ..., 1 with the least squared error of the outputs over the samples, weights and inputs both rounded.
ChannelFactors smooth_factors(const Checkpoint& input, const Recipe& recipe, const Plan& plan, const SeenInputs& seen,
                              std::optional<double> strength);

/// s_j = (mean x_j^2)^(a/2), as it is or over (mean |w_j|)^(1-a), over the geometric mean of its extremes; that and a of 0, 0.05, ..., 1
/// with the least loss of the rounded weights: sum over the readers of tr(E X^T X E^T), E = W - Q(W s) / s.
ChannelFactors awq_factors(const Checkpoint& input, const Plan& plan, const SeenInputs& seen);

}  // namespace narrow
