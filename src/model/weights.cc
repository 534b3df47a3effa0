/// open_model: every tensor by its name, its shape checked, quantized on the way where asked.

#include "model/weights.h"

#include <map>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "io/interop.h"
#include "io/text.h"
#include "model/cuda/device_decoder.h"
#include "model/model_shapes.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using model::LayerWeights;
using model::Linear;

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelOptions& options)
      : checkpoint_(checkpoint), options_(options), foreign_(io::InteropReader::open(checkpoint)) {
    const bool is_quantized = checkpoint.is_quantized() || foreign_;
    if (options.recipe) {
      if (is_quantized) throw InvalidArgument("the model is quantized already; a recipe needs a plain one");
      for (PlannedTensor& planned : plan_quantize(checkpoint, *options.recipe, checkpoint.directory()).tensors)
        if (planned.fate == Fate::kQuantize) planned_.emplace(planned.name, planned.scheme);
    }
    activations_ = options.activations;
    if (!activations_ && options.recipe) activations_ = options.recipe->activations;
    if (!activations_ && is_quantized) activations_ = read_activations(checkpoint);
  }

  std::shared_ptr<Model::State> load() {
    state_->keeps_fp32 = options_.compute == Compute::kFp32;
    const ModelConfig config = state_->config = read_model_config(checkpoint_);
    state_->embedding = values("model.embed_tokens.weight", {config.vocabulary, config.hidden});
    const std::uint64_t embedding_bytes = stored_bytes("model.embed_tokens.weight");
    for (std::int64_t i = 0; i < config.layers; ++i) state_->layers.push_back(layer(i));
    state_->final_norm = norm("model.norm.weight", config.hidden);
    // A tied head is the embedding; some files leave it out of the config and the head out of the file.
    const bool tied = config.tied_head || !(checkpoint_.contains("lm_head.weight") || is_foreign("lm_head.weight"));
    state_->head = tied ? Linear{.module = "lm_head", .weight = prepare(state_->embedding, form())}
                        : linear("lm_head", config.vocabulary, config.hidden, nullptr);
    if (tied) state_->head.rounds_to_bf16 = is_bf16(state_->head.weight);
    state_->weight_bytes += embedding_bytes;
    for (const LinearInfo& info : state_->linears) state_->weight_bytes += info.bytes;
    if (!tied) state_->weight_bytes += stored_bytes("lm_head.weight");
    return state_;
  }

 private:
  Tensor values(const std::string& name, const Shape& shape) const {
    model::check_tensor(checkpoint_, name, shape);
    return checkpoint_.tensor(name);
  }
  Tensor norm(const std::string& name, std::int64_t size) const { return convert(values(name, {size}), DType::kF32); }
  std::uint64_t stored_bytes(const std::string& name) const {
    if (const auto info = checkpoint_.quantized_info(name)) return quantized_bytes(info->scheme, info->shape);
    if (is_foreign(name)) return foreign_->read(name).q.byte_size();
    return static_cast<std::uint64_t>(element_count(checkpoint_.shape(name))) *
           static_cast<std::uint64_t>(bits_of(checkpoint_.dtype(name))) / 8;
  }

  /// Quantized, as another ecosystem stores it.
  bool is_foreign(const std::string& name) const { return foreign_ && foreign_->is_quantized(name); }
  QuantizedTensor foreign_weight(const std::string& name, const Shape& shape) const {
    io::InteropTensor weight = foreign_->read(name);
    if (weight.q.shape != shape)
      throw CorruptFile(fmt::format("{}: tensor {} is {}; config.json asks for {}", checkpoint_.directory().string(), io::in_quotes(name),
                                    to_string(weight.q.shape), to_string(shape)));
    if (!weight.order.empty())
      throw Unsupported(
          fmt::format("the columns of {} have an order of their own, which products do not know; convert the model to narrow's "
                      "form first (narrow convert --to narrow)",
                      io::in_quotes(name)));
    return std::move(weight.q);
  }

  /// What goes on to a device stays as it is stored.
  PrepareOptions form() const { return options_.device.is_cpu() ? PrepareOptions{} : PrepareOptions{.layout = WeightLayout::kCanonical}; }

  bool is_bf16(const PreparedWeight& weight) const {
    return options_.compute == Compute::kBf16 && weight.scheme.element == kBf16 && !weight.scheme.has_scales();
  }

  /// A Linear layer; `info`, where given, receives what it is.
  Linear linear(const std::string& module, std::int64_t n, std::int64_t k, std::vector<LinearInfo>* info) const {
    const std::string name = module + ".weight";
    if (!is_foreign(name)) model::check_tensor(checkpoint_, name, {n, k});
    Linear result;
    result.module = module;
    std::uint64_t bytes = is_foreign(name) ? 0 : stored_bytes(name);
    bool quantized = true;
    if (const auto planned = planned_.find(name); planned != planned_.end()) {
      result.weight = prepare(quantize(checkpoint_.tensor(name), planned->second, options_.recipe->options), form());
      bytes = quantized_bytes(planned->second, {n, k});
    } else if (is_foreign(name)) {
      result.weight = prepare(foreign_weight(name, {n, k}), form());
      bytes = quantized_bytes(result.weight.scheme, {n, k});
    } else if (checkpoint_.quantized_info(name)) {
      result.weight = prepare(checkpoint_.quantized(name), form());
    } else {
      result.weight = prepare(checkpoint_.tensor(name), form());
      result.rounds_to_bf16 = is_bf16(result.weight);
      quantized = false;
    }
    if (checkpoint_.contains(module + ".bias")) result.bias = norm(module + ".bias", n);
    if (activations_ && quantized) set_rounding(result, *activations_, state_->keeps_fp32);
    if (info != nullptr) {
      LinearInfo about{.module = module, .weight = result.weight.scheme, .n = n, .k = k, .bytes = bytes};
      if (result.rounding) about.activation = result.rounding->activation;
      info->push_back(std::move(about));
    }
    return result;
  }

  LayerWeights layer(std::int64_t index) const {
    const ModelConfig& c = state_->config;
    const std::string prefix = fmt::format("model.layers.{}.", index);
    std::vector<LinearInfo>* info = &state_->linears;
    LayerWeights w;
    w.attention_norm = norm(prefix + "input_layernorm.weight", c.hidden);
    w.mlp_norm = norm(prefix + "post_attention_layernorm.weight", c.hidden);
    if (c.norms_heads()) {
      w.q_norm = norm(prefix + "self_attn.q_norm.weight", c.head_dim);
      w.k_norm = norm(prefix + "self_attn.k_norm.weight", c.head_dim);
    }
    w.q = linear(prefix + "self_attn.q_proj", c.heads * c.head_dim, c.hidden, info);
    w.k = linear(prefix + "self_attn.k_proj", c.kv_heads * c.head_dim, c.hidden, info);
    w.v = linear(prefix + "self_attn.v_proj", c.kv_heads * c.head_dim, c.hidden, info);
    w.o = linear(prefix + "self_attn.o_proj", c.hidden, c.heads * c.head_dim, info);
    const std::int64_t width = mlp_width(c, index);
    for (const MlpModules& names : mlp_modules(c, index)) {
      model::GatedMlp& mlp = w.mlps.emplace_back();
      mlp.gate = linear(names.gate, width, c.hidden, info);
      mlp.up = linear(names.up, width, c.hidden, info);
      mlp.down = linear(names.down, c.hidden, width, info);
    }
    if (c.has_experts(index)) w.router = linear(router_module(c, index), c.experts->count, c.hidden, nullptr);
    return w;
  }

  const Checkpoint& checkpoint_;
  const ModelOptions& options_;
  std::optional<io::InteropReader> foreign_;
  std::map<std::string, Scheme> planned_;
  std::optional<ActivationRecipe> activations_;
  std::shared_ptr<Model::State> state_ = std::make_shared<Model::State>();
};

}  // namespace

std::vector<model::Linear*> model::LayerWeights::linears() {
  std::vector<Linear*> all{&q, &k, &v, &o};
  for (GatedMlp& mlp : mlps) all.insert(all.end(), {&mlp.gate, &mlp.up, &mlp.down});
  return all;
}
std::vector<const model::Linear*> model::LayerWeights::linears() const {
  const std::vector<Linear*> all = const_cast<LayerWeights*>(this)->linears();
  return {all.begin(), all.end()};
}

std::shared_ptr<Model::State> model::load_state(const std::filesystem::path& path, const ModelOptions& options) {
  const Checkpoint checkpoint = open_checkpoint(path);
  return Loader(checkpoint, options).load();
}

Model open_model(const std::filesystem::path& path, const ModelOptions& options) {
  // Before anything is read.
  if (!options.device.is_cpu()) cuda::require_device(options.device.index);
  if (options.device.is_cpu() && options.compute == Compute::kFp16)
    throw Unsupported("the CPU's products take fp32 or bf16 inputs; fp16 ones are for CUDA devices");
  std::shared_ptr<Model::State> state = model::load_state(path, options);
  if (options.device.is_cpu()) return Model(state);
  {
    const cuda::OwnedStream stream(options.device.index);
    state->on_device = std::make_shared<model::DeviceDecoder>(model::to_device(*state, options.device, stream));
  }
  state->embedding = state->final_norm = {};
  state->layers.clear();
  state->head = {};
  return Model(state);
}

const ModelConfig& Model::config() const { return state_->config; }
const std::vector<LinearInfo>& Model::linears() const { return state_->linears; }
std::uint64_t Model::weight_bytes() const { return state_->weight_bytes; }

double Model::bits_per_weight() const {
  double bits = 0.0, weights = 0.0;
  for (const LinearInfo& linear : state_->linears) {
    bits += 8.0 * static_cast<double>(linear.bytes);
    weights += static_cast<double>(linear.n * linear.k);
  }
  return weights > 0.0 ? bits / weights : 0.0;
}

Device Model::device() const { return state_->on_device ? state_->on_device->weights().device : Device::cpu(); }
KvCache Model::make_cache(const Scheme& scheme) const { return KvCache(state_->config, scheme, device()); }

}  // namespace narrow
