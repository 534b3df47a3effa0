#include "model_tensors.h"

#include <algorithm>

#include "methods/interop_values.h"
#include "narrow/quantize.h"

namespace narrow::command {

ModelTensors::ModelTensors(const std::string& path) : checkpoint_(open_checkpoint(path)), foreign_(io::InteropReader::open(checkpoint_)) {}

std::string ModelTensors::form() const {
  if (checkpoint_.is_quantized()) return std::string(name_of(Ecosystem::kNarrow));
  return foreign_ ? std::string(foreign_->format().name) : "";
}

std::vector<std::string> ModelTensors::names() const { return foreign_ ? foreign_->names() : checkpoint_.names(); }

bool ModelTensors::contains(const std::string& name) const {
  return foreign_ ? std::binary_search(foreign_->names().begin(), foreign_->names().end(), name) : checkpoint_.contains(name);
}

std::uint64_t ModelTensors::stored_bytes(const std::string& name) const {
  if (const auto info = checkpoint_.quantized_info(name)) return quantized_bytes(info->scheme, info->shape);
  if (!is_foreign(name)) return checkpoint_.stored(name).byte_size();
  const std::string module = name.substr(0, name.size() - io::kWeightSuffix.size());
  std::uint64_t bytes = 0;
  for (const std::string_view suffix : foreign_->format().suffixes)
    if (const std::string part = module + std::string(suffix); checkpoint_.contains(part)) bytes += checkpoint_.stored(part).byte_size();
  return bytes;
}

ModelTensor ModelTensors::read(const std::string& name) const {
  if (is_foreign(name)) {
    io::InteropTensor tensor = foreign_->read(name);
    ModelTensor result{values_of(tensor), tensor.q.scheme};
    if (tensor.order.empty()) result.quantized = std::move(tensor.q);
    return result;
  }
  if (!checkpoint_.quantized_info(name)) return {checkpoint_.tensor(name)};
  QuantizedTensor q = checkpoint_.quantized(name);
  return {dequantize(q, DType::kF32), q.scheme, std::move(q)};
}

}  // namespace narrow::command
