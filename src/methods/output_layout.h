#pragma once
/// The tensor files that a plan writes: the input's sharding, with quantized tensors in their parts.

#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "narrow/recipe.h"

namespace narrow {

struct OutputFile {
  std::string name;
  std::vector<const PlannedTensor*> tensors;  ///< in the input file's order, so that it is read from front to back
  io::SafetensorsLayout layout;
};

/// Throws InvalidArgument where a part's name is already a tensor's.
std::vector<OutputFile> layout_output(const Checkpoint& input, const std::vector<PlannedTensor>& tensors);

/// __metadata__ of an output file: the input's, and {"format": "pt"} as transformers expects.
io::Metadata output_metadata(const Checkpoint& input, const std::string& file);

}  // namespace narrow
