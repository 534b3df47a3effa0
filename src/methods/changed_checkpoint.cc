#include "methods/changed_checkpoint.h"

#include "io/safetensors_writer.h"
#include "methods/output_directory.h"
#include "methods/output_layout.h"

namespace narrow {

void write_changed(const Checkpoint& input, const std::filesystem::path& place, const TensorChanges& changes) {
  std::vector<PlannedTensor> tensors;
  for (const TensorInfo& info : input.stored()) {
    const auto changed = changes.types.find(info.name);
    PlannedTensor tensor;
    tensor.name = info.name;
    tensor.dtype = changed != changes.types.end() ? changed->second : info.dtype;
    tensor.shape = info.shape;
    tensors.push_back(std::move(tensor));
  }
  const std::vector<OutputFile> files = layout_output(input, tensors);
  for (const OutputFile& file : files) {
    io::SafetensorsWriter writer(place / file.name, file.layout);
    for (const PlannedTensor* tensor : file.tensors) {
      if (changes.types.contains(tensor->name)) {
        const Tensor values = convert(changes.values(tensor->name), tensor->dtype).contiguous();
        writer.append(tensor->name, {values.data(), values.byte_size()});
      } else {
        stream_tensor(input, input.stored(tensor->name), [&](std::span<const std::byte> bytes) { writer.append(tensor->name, bytes); });
      }
    }
    writer.commit(io::Names::kLeftToDirectory);
  }
  write_side_files(input, place, input.config(), files);
}

}  // namespace narrow
