/// walk_layers on a CUDA device: a text layer by layer, every input computed with the weights that were put in place before it.

#include <algorithm>

#include "device/cuda/runtime.h"
#include "model/cuda/device_decoder.h"
#include "model/cuda/views.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

using cuda::check;

/// The decoder with one layer at a time.
class DeviceWalk {
 public:
  DeviceWalk(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, Device device)
      : state_(load_state(path, {.device = device})),
        windows_(windows),
        batches_(text_chunks(windows)),
        decoder_(empty_decoder(*state_, device)) {
    const cuda::DeviceGuard guard(device.index);
    const ModelConfig& c = decoder_.config();
    std::size_t sequences = 0, rows = 0;
    for (const WindowRange& batch : batches_) {
      sequences = std::max(sequences, batch.last - batch.first);
      std::size_t tokens = 0;
      for (std::size_t i = batch.first; i < batch.last; ++i) tokens += windows[i].size();
      rows = std::max(rows, tokens);
      streams_.push_back(Tensor::empty(DType::kF32, {static_cast<std::int64_t>(tokens), c.hidden}, device));
    }
    // Every batch writes the same caches, and nobody reads them afterwards. Prompts read keys and values in fp16.
    while (caches_.size() < sequences) caches_.emplace_back(c, KvCache::parse_scheme("fp16"), device);
    scratch_ = PassScratch::allocate(weights(), static_cast<std::int64_t>(rows), 0);
    each([&](const DeviceRows& at, const Tensor& stream) {
      check(cuda::launch_embed(at.tokens, at.rows, weights().embedding.data(), weights().embedding.dtype(), c.hidden, stream.as<float>(),
                               decoder_.stream()),
            "embed");
    });
  }

  void run(const DeviceLayerVisitor& visit) {
    const cuda::DeviceGuard guard(device().index);
    for (std::size_t i = 0; i < state_->layers.size(); ++i) {
      LayerWeights& w = state_->layers[i];
      if (w.router) throw Unsupported("methods fit mixtures of experts on the CPU; leave --device out");
      weights().layers.assign(1, to_device(w, state_->config, device(), decoder_.stream()));
      weights().config.windows.assign(1, state_->config.windows.empty() ? 0 : state_->config.windows[i]);
      DeviceLayer& layer = weights().layers.front();
      show(visit, {&w.q, &w.k, &w.v}, layer.qkv,
           [&](const DeviceRows&, const Tensor& stream) { return norm(stream, layer.attention_norm); });
      show(visit, {&w.o}, layer.o, [&](const DeviceRows& rows, const Tensor& stream) { return mix(rows, stream); });
      each([&](const DeviceRows& rows, const Tensor& stream) { add(layer.o, mix(rows, stream), stream); });
      show(visit, {&w.mlps.front().gate, &w.mlps.front().up}, layer.gate_up,
           [&](const DeviceRows&, const Tensor& stream) { return norm(stream, layer.mlp_norm); });
      show(visit, {&w.mlps.front().down}, layer.down, [&](const DeviceRows&, const Tensor& stream) { return gate(stream); });
      each([&](const DeviceRows&, const Tensor& stream) { add(layer.down, gate(stream), stream); });
      w = {};  // its weights are not read again
    }
    cuda::synchronize(decoder_.stream());
  }

 private:
  static DeviceDecoder empty_decoder(const Model::State& state, Device device) {
    require_hopper(device);
    const cuda::OwnedStream stream(device.index);
    DeviceWeights w;
    w.config = state.config;
    w.config.layers = 1;
    w.device = device;
    w.embedding = cuda::to_device(state.embedding, device, stream);
    cuda::synchronize(stream);
    return DeviceDecoder(std::move(w));
  }

  DeviceWeights& weights() { return decoder_.weights(); }
  Device device() const { return decoder_.weights().device; }

  /// `step` for every batch of the text and its stream.
  template <typename Step>
  void each(const Step& step) {
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      std::vector<Sequence> sequences;
      for (std::size_t i = batches_[b].first; i < batches_[b].last; ++i)
        sequences.push_back({windows_[i], &caches_[i - batches_[b].first]});
      step(decoder_.place_rows(sequences, upload_), streams_[b]);
    }
  }

  /// Shows an input to the visitor, and puts what it gives back in the place of the weights.
  template <typename Source>
  void show(const DeviceLayerVisitor& visit, std::initializer_list<const Linear*> linears, DeviceLinear& on_device, const Source& source) {
    std::vector<std::string> modules;
    for (const Linear* linear : linears) modules.push_back(linear->module);
    const auto read = [&](const std::function<void(const Tensor&)>& see) {
      each([&](const DeviceRows& rows, const Tensor& stream) {
        see(source_values(source(rows, stream), DType::kF32, scratch_.input.values, decoder_.stream()));
      });
    };
    const std::map<std::string, QuantizedTensor> replaced = visit({modules, on_device.k(), device(), decoder_.stream(), read});
    if (replaced.empty()) return;
    const std::vector<const Linear*> layers(linears.begin(), linears.end());
    std::vector<const QuantizedTensor*> weights;
    for (const Linear* linear : linears) {
      const auto found = replaced.find(linear->module);
      weights.push_back(found == replaced.end() ? nullptr : &found->second);
    }
    on_device = DeviceLinear(layers, device(), decoder_.stream(), false, weights);
  }

  /// What lies between products of so many rows.
  static DType type_of(std::int64_t rows) { return rows > kFewRows ? DType::kF16 : DType::kF32; }

  DeviceSource norm(const Tensor& stream, const Tensor& weight) const {
    return {DeviceSource::Op::kNorm, stream, weight, decoder_.config().norm_epsilon, {}};
  }
  /// q, k, v and attention: the input of o.
  DeviceSource mix(const DeviceRows& rows, const Tensor& stream) {
    const DeviceLayer& layer = weights().layers.front();
    const ModelConfig& c = decoder_.config();
    const DType type = type_of(rows.rows);
    layer.qkv.run(norm(stream, layer.attention_norm), scratch_.input,
                  view(scratch_.qkv, type, {rows.rows, (c.heads + 2 * c.kv_heads) * c.head_dim}), decoder_.stream());
    decoder_.attend(rows, scratch_, 0, type);
    const DType out = layer.o.source_type(rows.rows > kFewRows);
    return {DeviceSource::Op::kValues, view(scratch_.mixed, out, {rows.rows, c.heads * c.head_dim}), {}, 0.0f, {}};
  }
  /// gate and up: the input of down.
  DeviceSource gate(const Tensor& stream) {
    const DeviceLayer& layer = weights().layers.front();
    const Tensor both = view(scratch_.gate_up, type_of(stream.shape()[0]), {stream.shape()[0], 2 * decoder_.config().intermediate});
    layer.gate_up.run(norm(stream, layer.mlp_norm), scratch_.input, both, decoder_.stream());
    return {DeviceSource::Op::kGate, both, {}, 0.0f, {}};
  }
  void add(const DeviceLinear& linear, const DeviceSource& source, const Tensor& stream) {
    linear.run(source, scratch_.input, stream, decoder_.stream(), stream);
  }

  std::shared_ptr<Model::State> state_;
  std::span<const std::vector<std::int32_t>> windows_;
  std::vector<WindowRange> batches_;
  DeviceDecoder decoder_;
  std::vector<KvCache> caches_;
  std::vector<Tensor> streams_;  ///< of each batch, fp32 [tokens, hidden]
  PassScratch scratch_;
  Buffer upload_;
};

}  // namespace
}  // namespace narrow::model

namespace narrow {

void walk_layers(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, Device device,
                 const DeviceLayerVisitor& visit) {
  cuda::require_device(device.index);
  model::DeviceWalk(path, windows, device).run(visit);
}

}  // namespace narrow
