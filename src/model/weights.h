#pragma once
/// The weights of a decoder in the form in which forward reads them.

#include <memory>
#include <vector>

#include "model/linear.h"
#include "narrow/model.h"

namespace narrow {

namespace model {

class DeviceDecoder;

struct GatedMlp {
  Linear gate, up, down;
};

struct LayerWeights {
  Tensor attention_norm, mlp_norm;           ///< fp32 [hidden]
  std::optional<Tensor> q_norm{}, k_norm{};  ///< fp32 [head_dim]: Qwen3
  Linear q, k, v, o;
  std::vector<GatedMlp> mlps;      ///< one, or those that the router chooses among
  std::optional<Linear> router{};  ///< [experts, hidden]

  /// All but the router.
  std::vector<Linear*> linears();
  std::vector<const Linear*> linears() const;
};

}  // namespace model

struct Model::State {
  ModelConfig config;
  Tensor embedding;  ///< [vocabulary, hidden], in the file's type
  std::vector<model::LayerWeights> layers;
  Tensor final_norm;
  model::Linear head;
  std::vector<LinearInfo> linears;
  std::uint64_t weight_bytes = 0;
  std::shared_ptr<const model::DeviceDecoder> on_device;  ///< in place of the weights above
  bool keeps_fp32 = false;                                ///< Compute::kFp32 was asked for
};

namespace model {
/// open_model's state on the CPU, for those that replace weights in it; for a device weights are not laid out for the CPU's products.
std::shared_ptr<Model::State> load_state(const std::filesystem::path& path, const ModelOptions& options);
}  // namespace model

}  // namespace narrow
