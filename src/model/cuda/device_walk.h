#pragma once
/// walk_layers on a CUDA device: a text layer by layer, every input computed with the weights that were put in place before it.

#include "narrow/cuda.h"
#include "narrow/model.h"

namespace narrow::model {

/// What the Linear modules that share an input see of a whole text.
struct DeviceLayerInputs {
  std::span<const std::string> modules;
  std::int64_t channels = 0;
  Device device;
  cuda::Stream stream = nullptr;
  /// Computes the input and shows it in parts, fp32 [tokens, channels] on the device, each valid until the next.
  std::function<void(const std::function<void(const Tensor& x)>& see)> read;
};
using DeviceLayerVisitor = std::function<std::map<std::string, QuantizedTensor>(const DeviceLayerInputs& layer)>;

/// As narrow::walk_layers. Between layers the stream of all tokens is kept, 4 * hidden bytes each on the device; inputs are computed again
/// rather than kept. Weights come to the device a layer at a time.
void walk_layers(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, Device device,
                 const DeviceLayerVisitor& visit);

}  // namespace narrow::model
