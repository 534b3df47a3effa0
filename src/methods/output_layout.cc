#include "methods/output_layout.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "io/quantized_layout.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow {

io::Metadata output_metadata(const Checkpoint& input, const std::string& file) {
  io::Metadata metadata = input.metadata(file);
  metadata.emplace("format", "pt");
  return metadata;
}

std::vector<OutputFile> layout_output(const Checkpoint& input, const std::vector<PlannedTensor>& tensors) {
  std::map<std::string, std::vector<const PlannedTensor*>> by_file;
  for (const std::string& file : input.tensor_files()) by_file[file];
  for (const PlannedTensor& tensor : tensors) by_file.at(input.stored(tensor.name).file).push_back(&tensor);

  std::set<std::string> taken;
  std::vector<OutputFile> files;
  for (auto& [name, members] : by_file) {
    std::sort(members.begin(), members.end(), [&](const PlannedTensor* a, const PlannedTensor* b) {
      const TensorInfo &left = input.stored(a->name), &right = input.stored(b->name);
      return left.begin != right.begin ? left.begin < right.begin : left.name < right.name;
    });
    std::vector<TensorInfo> stored;
    const auto add = [&](const std::string& part, DType dtype, const Shape& shape) {
      if (!taken.insert(part).second)
        throw InvalidArgument(
            fmt::format("quantize: the input has a tensor {} where a part of a quantized one must go; ignore the tensor it belongs to",
                        io::in_quotes(part)));
      stored.push_back({.name = part, .dtype = dtype, .shape = shape});
    };
    for (const PlannedTensor* tensor : members) {
      if (tensor->fate == Fate::kCopy) {
        add(tensor->name, tensor->dtype, tensor->shape);
      } else {
        for (const io::StoredPart& part : io::stored_parts(tensor->name, tensor->scheme, tensor->shape))
          add(part.name, part.dtype, part.shape);
      }
    }
    files.push_back({name, std::move(members), io::layout_safetensors(std::move(stored), output_metadata(input, name))});
  }
  return files;
}

}  // namespace narrow
