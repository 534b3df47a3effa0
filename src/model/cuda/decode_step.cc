#include "model/cuda/decode_step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/byte_product.h"
#include "ops/cuda_weights.h"

namespace narrow::model {
namespace {

using cuda::StepEncoding;
using cuda::StepParams;

constexpr int kMostSplits = 8, kMostGroup = 32;

std::array<const DeviceLinear*, cuda::kStepHead> linears_of(const DeviceLayer& layer) {
  return {&layer.qkv, &layer.o, &layer.gate_up, &layer.down};
}

bool same(const StepEncoding& a, const StepEncoding& b) {
  return a.kind == b.kind && a.bits == b.bits && a.bf16 == b.bf16 && a.chunk_bytes == b.chunk_bytes && a.zero_offset == b.zero_offset &&
         a.scale == b.scale && a.step_shift == b.step_shift && a.integer_offset == b.integer_offset;
}

/// Everything but pointers.
StepParams params_of(const ModelConfig& c, const StepEncoding& encoding, int blocks) {
  const auto count = [](std::int64_t size) { return static_cast<int>(size); };
  StepParams p;
  p.layer_count = count(c.layers);
  p.encoding = encoding;
  p.heads = count(c.heads);
  p.kv_heads = count(c.kv_heads);
  p.head_dim = count(c.head_dim);
  p.splits = std::clamp(blocks / p.kv_heads, 1, kMostSplits);
  p.epsilon = c.norm_epsilon;
  p.score_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.shapes[cuda::kStepQkv] = cuda::step_shape(count((c.heads + 2 * c.kv_heads) * c.head_dim), count(c.hidden), blocks);
  p.shapes[cuda::kStepO] = cuda::step_shape(count(c.hidden), count(c.heads * c.head_dim), blocks);
  p.shapes[cuda::kStepGateUp] = cuda::step_shape(count(2 * c.intermediate), count(c.hidden), blocks);
  p.shapes[cuda::kStepDown] = cuda::step_shape(count(c.hidden), count(c.intermediate), blocks);
  p.shapes[cuda::kStepHead] = cuda::step_shape(count(c.vocabulary), count(c.hidden), blocks);
  return p;
}

int multiprocessors(Device device) {
  const cuda::DeviceGuard guard(device.index);
  return cuda::byte_device().multiprocessors;
}

std::optional<StepEncoding> encoding_of(const DeviceLinear& linear) {
  const cuda::DeviceWeight* weight = linear.plain_weight();
  if (weight == nullptr) return std::nullopt;
  return cuda::step_encoding(cuda::weight_view(*weight), linear.input_type() == DType::kBf16);
}

}  // namespace

std::optional<std::string> DecodeStep::obstacle(const DeviceDecoder& decoder, std::int64_t sequences, cuda::CacheKind cache) {
  const ModelConfig& c = decoder.config();
  const DeviceWeights& w = decoder.weights();
  if (sequences != 1) return fmt::format("{} sequences; it takes one", sequences);
  if (!cuda::has_step_cache(cache)) return "keys and values in 8 bits";
  if (w.layers.empty()) return "no layers";
  if (c.experts) return "mixtures of experts";
  if (c.hidden % 4 != 0 || c.intermediate % 4 != 0 || c.head_dim % 16 != 0)
    return "sizes that are no multiples of 4, or heads of no multiple of 16";
  if (c.hidden > cuda::kStepMostHidden) return fmt::format("a stream of {} values; it holds {}", c.hidden, cuda::kStepMostHidden);
  if (c.heads / c.kv_heads > kMostGroup) return fmt::format("more than {} query heads of one key head", kMostGroup);
  const int blocks = multiprocessors(w.device);
  if (c.kv_heads > blocks) return "more key heads than multiprocessors";
  const std::optional<StepEncoding> first = encoding_of(w.layers.front().qkv);
  for (const DeviceLayer& layer : w.layers)
    for (const DeviceLinear* linear : linears_of(layer)) {
      const std::optional<StepEncoding> encoding = encoding_of(*linear);
      if (!encoding) return "weights or inputs in a scheme that it does not multiply";
      if (!same(*encoding, *first)) return "layers in several schemes";
    }
  const std::optional<StepEncoding> head = encoding_of(w.head);
  if (!head || head->kind != cuda::WeightKind::kDense || head->bf16 != first->bf16) return "a head that is not in the inputs' 16-bit type";
  StepParams params = params_of(c, *first, blocks);
  for (const cuda::StepShape& shape : params.shapes)
    if (cuda::most_parts(shape) > cuda::kStepMostParts) return "rows that too many multiprocessors would share";
  if (!cuda::plan_step(params)) return "rows that shared memory does not hold";
  return std::nullopt;
}

DecodeStep::DecodeStep(const DeviceDecoder& decoder, const DeviceRows& rows, const Tensor& logits) {
  const DeviceWeights& w = decoder.weights();
  const cuda::Stream stream = decoder.stream();
  blocks_ = multiprocessors(w.device);
  params_ = params_of(w.config, *encoding_of(w.layers.front().qkv), blocks_);
  cuda::plan_step(params_);
  const auto product_of = [](const DeviceLinear& linear) {
    const cuda::DeviceWeight& weight = *linear.plain_weight();
    return cuda::StepProduct{weight.chunks.as<std::uint8_t>(), weight.factors.as<float>(), linear.plain_bias()};
  };
  const auto values_of = [](const std::optional<Tensor>& norm) { return norm ? norm->as<float>() : nullptr; };
  std::vector<cuda::StepLayer> layers;
  for (const DeviceLayer& from : w.layers) {
    cuda::StepLayer layer;
    const auto linears = linears_of(from);
    for (std::size_t kind = 0; kind < linears.size(); ++kind) layer.products[kind] = product_of(*linears[kind]);
    layer.attention_norm = from.attention_norm.as<float>();
    layer.mlp_norm = from.mlp_norm.as<float>();
    layer.q_norm = values_of(from.q_norm);
    layer.k_norm = values_of(from.k_norm);
    layer.window = static_cast<int>(w.config.windows.empty() ? 0 : w.config.windows[layers.size()]);
    layers.push_back(layer);
  }
  layers_ = Buffer::allocate(layers.size() * sizeof(cuda::StepLayer), w.device);
  cuda::copy_bytes(layers_.data(), layers.data(), layers_.size(), stream);
  params_.layers = layers_.as<cuda::StepLayer>();
  params_.head = product_of(w.head);

  std::size_t words = 0;
  for (const cuda::StepShape& shape : params_.shapes) words += static_cast<std::size_t>(params_.vectors) * shape.pitch;
  const std::size_t softmaxes = static_cast<std::size_t>(params_.heads) * params_.splits * cuda::softmax_pitch(params_.head_dim);
  scratch_ = Buffer::allocate((words + softmaxes) * sizeof(std::uint32_t), w.device);
  cuda::set_bytes(scratch_.data(), 0, scratch_.size(), stream);
  auto* at = scratch_.as<std::uint32_t>();
  for (cuda::StepShape& shape : params_.shapes) {
    shape.results = at;
    at += static_cast<std::int64_t>(params_.vectors) * shape.pitch;
  }
  params_.softmaxes = at;
  arrivals_ = Buffer::allocate(3 * sizeof(std::uint32_t), w.device);
  cuda::set_bytes(arrivals_.data(), 0, arrivals_.size(), stream);
  params_.arrivals = arrivals_.as<std::uint32_t>();

  params_.cache_kind = rows.kind;
  params_.cache = rows.caches;
  params_.token = rows.tokens;
  params_.position = rows.positions;
  params_.cosine = rows.cosine;
  params_.sine = rows.sine;
  params_.embedding = w.embedding.data();
  params_.embedding_type = w.embedding.dtype();
  params_.final_norm = w.final_norm.as<float>();
  params_.logits = logits.as<float>();
  cuda::synchronize(stream);  // the host's copies end here
}

void DecodeStep::enqueue(cuda::Stream stream) const { cuda::check(cuda::launch_step(params_, blocks_, stream), "decode_step"); }

}  // namespace narrow::model
