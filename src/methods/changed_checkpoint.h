#pragma once
/// A plain checkpoint with some tensors replaced: what folding writes before anything is quantized.

#include <filesystem>
#include <functional>
#include <map>

#include "narrow/checkpoint.h"

namespace narrow {

struct TensorChanges {
  std::map<std::string, DType> types;                     ///< of the tensors that change
  std::function<Tensor(const std::string& name)> values;  ///< fp32, of the shape that they had
};

/// Writes every tensor and side file into the directory `place`, which is there; one tensor in memory at a time.
void write_changed(const Checkpoint& input, const std::filesystem::path& place, const TensorChanges& changes);

}  // namespace narrow
