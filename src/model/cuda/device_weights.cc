/// A decoder's weights on the device: copied from the CPU's executor, or random ones of an architecture.

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/byte_product.h"
#include "model/cuda/device_decoder.h"
#include "narrow/error.h"

namespace narrow::model {

void require_hopper(Device device) {
  const cuda::DeviceGuard guard(device.index);
  if (!cuda::byte_device().is_hopper)
    throw Unsupported(
        fmt::format("CUDA device {} is no Hopper; the CUDA executor needs compute capability 9.0: use the CPU", device.index));
}

namespace {

using cuda::Stream;

/// Weights made from one seed after the other.
class RandomWeights {
 public:
  RandomWeights(const ModelConfig& config, const Recipe& recipe, Device device, Stream stream, bool keeps_fp32)
      : config_(config), recipe_(recipe), device_(device), stream_(stream), keeps_fp32_(keeps_fp32) {
    dense_ = recipe.scheme.element == kBf16 && !keeps_fp32 ? DType::kBf16 : DType::kF16;
  }

  DType dense_type() const { return dense_; }

  Tensor values(DType type, Shape shape, float deviation) {
    Tensor x = Tensor::empty(type, std::move(shape), device_);
    cuda::check(cuda::launch_random(x.data(), type, x.size(), deviation, ++seed_, stream_), "random");
    return x;
  }

  Tensor ones(std::int64_t size) {
    Tensor x = Tensor::empty(DType::kF32, {size});
    std::fill_n(x.as<float>(), size, 1.0f);
    Tensor result = cuda::to_device(x, device_, stream_);
    cuda::synchronize(stream_);
    return result;
  }

  /// A layer of the recipe's scheme; `module` finds its activations.
  DeviceLinear linear(std::int64_t n, std::int64_t k, const std::string& module) {
    if (module.empty() || is_plain()) return dense(weight({n, k}));
    const std::optional<ActivationScheme> activation = activation_of(module);
    return DeviceLinear(quantized({n, k}), activation, stream_, keeps_fp32_);
  }

  DeviceExperts experts(const std::string& module) {
    const ExpertsConfig& e = *config_.experts;
    const Tensor router = values(DType::kF32, {e.count, config_.hidden}, 1.0f / std::sqrt(static_cast<float>(config_.hidden)));
    return DeviceExperts(router, quantized({e.count, 2 * e.intermediate, config_.hidden}),
                         quantized({e.count, config_.hidden, e.intermediate}), activation_of(module), e, stream_);
  }

 private:
  /// Like a trained one: the output is about as large as the input.
  Tensor weight(const Shape& shape) { return values(dense_, shape, 1.0f / std::sqrt(static_cast<float>(shape.back()))); }
  cuda::DeviceQuantized quantized(const Shape& shape) {
    cuda::DeviceQuantized q = cuda::allocate_quantized(recipe_.scheme, shape, device_);
    cuda::quantize(weight(shape), q, stream_);
    return q;
  }
  std::optional<ActivationScheme> activation_of(const std::string& module) const {
    if (!recipe_.activations) return std::nullopt;
    const std::optional<ActivationScheme> activation = recipe_.activations->scheme_of(module);
    if (activation && activation->is_static)
      throw Unsupported(fmt::format("random weights have no calibrated scales for {}; use dynamic activations", activation->to_string()));
    return activation;
  }
  bool is_plain() const { return recipe_.scheme.element == kFp16 || recipe_.scheme.element == kBf16; }
  DeviceLinear dense(const Tensor& x) const {
    Scheme scheme;
    scheme.element = x.dtype() == DType::kBf16 ? kBf16 : kFp16;
    scheme.granularity = Granularity::none();
    const cuda::DeviceQuantized q{scheme, x.shape(), Buffer::borrow(x.data(), x.byte_size(), device_), {}, {}, {}};
    return DeviceLinear(q, std::nullopt, stream_, keeps_fp32_);
  }

  const ModelConfig& config_;
  const Recipe& recipe_;
  Device device_;
  Stream stream_;
  bool keeps_fp32_;
  DType dense_;
  std::uint64_t seed_ = 0;
};

}  // namespace

DeviceLayer to_device(const LayerWeights& from, const ModelConfig& config, Device device, Stream stream, bool keeps_fp32) {
  const auto copy = [&](const Tensor& x) { return cuda::to_device(x, device, stream); };
  const auto linear = [&](std::initializer_list<const Linear*> layers) {
    const std::vector<const Linear*> list(layers);
    return DeviceLinear(list, device, stream, keeps_fp32);
  };
  DeviceLayer layer;
  layer.attention_norm = copy(from.attention_norm);
  layer.mlp_norm = copy(from.mlp_norm);
  layer.qkv = linear({&from.q, &from.k, &from.v});
  layer.o = linear({&from.o});
  if (from.router) {
    layer.experts.emplace(from, *config.experts, device, stream);
  } else {
    layer.gate_up = linear({&from.mlps.front().gate, &from.mlps.front().up});
    layer.down = linear({&from.mlps.front().down});
  }
  if (from.q_norm) layer.q_norm = copy(*from.q_norm);
  if (from.k_norm) layer.k_norm = copy(*from.k_norm);
  for (const Linear* one : from.linears()) layer.names.push_back(one->module);
  cuda::synchronize(stream);
  return layer;
}

DeviceWeights to_device(const Model::State& state, Device device, Stream stream) {
  require_hopper(device);
  DeviceWeights w;
  w.config = state.config;
  w.device = device;
  w.keeps_fp32 = state.keeps_fp32;
  w.embedding = cuda::to_device(state.embedding, device, stream);
  for (const LayerWeights& layer : state.layers) w.layers.push_back(to_device(layer, state.config, device, stream, w.keeps_fp32));
  w.final_norm = cuda::to_device(state.final_norm, device, stream);
  const Linear* head = &state.head;
  w.head = DeviceLinear({&head, 1}, device, stream, w.keeps_fp32);
  cuda::synchronize(stream);
  return w;
}

DeviceWeights random_weights(const ModelConfig& config, const Recipe& recipe, Device device, Stream stream, bool keeps_fp32) {
  require_hopper(device);
  RandomWeights make(config, recipe, device, stream, keeps_fp32);
  DeviceWeights w;
  w.config = config;
  w.device = device;
  w.keeps_fp32 = keeps_fp32;
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  w.embedding = make.values(make.dense_type(), {config.vocabulary, config.hidden}, 1.0f);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    DeviceLayer layer;
    layer.attention_norm = make.ones(config.hidden);
    layer.mlp_norm = make.ones(config.hidden);
    if (config.norms_heads()) {
      layer.q_norm = make.ones(config.head_dim);
      layer.k_norm = make.ones(config.head_dim);
    }
    layer.qkv = make.linear(q + 2 * kv, config.hidden, prefix + "self_attn.q_proj");
    layer.o = make.linear(config.hidden, q, prefix + "self_attn.o_proj");
    if (config.has_experts(i)) {
      layer.experts.emplace(make.experts(prefix + "mlp.experts.0.gate_proj"));
    } else {
      layer.gate_up = make.linear(2 * config.intermediate, config.hidden, prefix + "mlp.gate_proj");
      layer.down = make.linear(config.hidden, config.intermediate, prefix + "mlp.down_proj");
    }
    for (const char* name :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      layer.names.push_back(prefix + name);
    w.layers.push_back(std::move(layer));
  }
  w.final_norm = make.ones(config.hidden);
  w.head = make.linear(config.vocabulary, config.hidden, "");
  cuda::synchronize(stream);
  return w;
}

}  // namespace narrow::model
