#pragma once
/// Learned rounding through the whole decoder: codes, scales and norms follow the gradient of the answers' divergence from the plain
/// model's.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "methods/journal.h"
#include "narrow/methods.h"

namespace narrow {

struct TunedModel {
  std::map<std::string, QuantizedTensor> weights;  ///< by tensor: all that were given, tuned or not
  std::map<std::string, Tensor> norms;             ///< fp32, by tensor
  TuneReport report;
};

/// `weights`: the quantized tensors of the plain model at `path`, by name. The divergence after is never above the one before: the state of
/// the best pass is what comes back. The journal has the state after the last whole pass, from which a run that was killed goes on.
TunedModel tune(const std::filesystem::path& path, std::map<std::string, QuantizedTensor> weights,
                std::span<const std::vector<std::int32_t>> windows, int passes, const Journal& journal, const TuneCallback& callback);

}  // namespace narrow
