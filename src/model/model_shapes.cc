#include "model/model_shapes.h"

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow::model {

void check_tensor(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  const auto corrupt = [&](const std::string& why) { throw CorruptFile(fmt::format("{}: {}", checkpoint.directory().string(), why)); };
  if (!checkpoint.contains(name)) corrupt(fmt::format("config.json asks for the tensor {}, which is not there", io::in_quotes(name)));
  if (checkpoint.shape(name) != shape)
    corrupt(
        fmt::format("tensor {} is {}; config.json asks for {}", io::in_quotes(name), to_string(checkpoint.shape(name)), to_string(shape)));
  if (!is_floating(checkpoint.dtype(name)))
    corrupt(fmt::format("tensor {} is {}; weights are F32, F16 or BF16", io::in_quotes(name), name_of(checkpoint.dtype(name))));
}

}  // namespace narrow::model

namespace narrow {
namespace {

/// Where a layer's experts and their router are.
std::string experts_module(const ModelConfig& config, std::int64_t layer) {
  return fmt::format("model.layers.{}.{}", layer, config.model_type == "mixtral" ? "block_sparse_moe" : "mlp");
}

}  // namespace

std::vector<MlpModules> mlp_modules(const ModelConfig& config, std::int64_t layer) {
  const auto named = [](const std::string& mlp) { return MlpModules{mlp + ".gate_proj", mlp + ".up_proj", mlp + ".down_proj"}; };
  if (!config.has_experts(layer)) return {named(fmt::format("model.layers.{}.mlp", layer))};
  std::vector<MlpModules> modules;
  for (std::int64_t i = 0; i < config.experts->count; ++i) {
    const std::string expert = fmt::format("{}.experts.{}", experts_module(config, layer), i);
    modules.push_back(config.model_type == "mixtral" ? MlpModules{expert + ".w1", expert + ".w3", expert + ".w2"} : named(expert));
  }
  return modules;
}

std::int64_t mlp_width(const ModelConfig& config, std::int64_t layer) {
  return config.has_experts(layer) ? config.experts->intermediate : config.intermediate;
}

std::string router_module(const ModelConfig& config, std::int64_t layer) { return experts_module(config, layer) + ".gate"; }

ModelConfig read_matching_config(const Checkpoint& checkpoint) {
  const ModelConfig config = read_model_config(checkpoint);
  const auto vector = [&](const std::string& name, std::int64_t size) { model::check_tensor(checkpoint, name, {size}); };
  const auto linear = [&](const std::string& module, std::int64_t n, std::int64_t k) {
    model::check_tensor(checkpoint, module + ".weight", {n, k});
    if (checkpoint.contains(module + ".bias")) vector(module + ".bias", n);
  };
  const std::int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  model::check_tensor(checkpoint, "model.embed_tokens.weight", {config.vocabulary, config.hidden});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i), attention = layer + "self_attn.";
    vector(layer + "input_layernorm.weight", config.hidden);
    vector(layer + "post_attention_layernorm.weight", config.hidden);
    linear(attention + "q_proj", query, config.hidden);
    linear(attention + "k_proj", key, config.hidden);
    linear(attention + "v_proj", key, config.hidden);
    linear(attention + "o_proj", config.hidden, query);
    const std::int64_t width = mlp_width(config, i);
    for (const MlpModules& mlp : mlp_modules(config, i)) {
      linear(mlp.gate, width, config.hidden);
      linear(mlp.up, width, config.hidden);
      linear(mlp.down, config.hidden, width);
    }
    if (config.has_experts(i)) linear(router_module(config, i), config.experts->count, config.hidden);
  }
  vector("model.norm.weight", config.hidden);
  if (checkpoint.contains("lm_head.weight")) linear("lm_head", config.vocabulary, config.hidden);
  return config;
}

}  // namespace narrow
