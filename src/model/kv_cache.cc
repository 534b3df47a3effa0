#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "model/cuda/device_cache.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::int64_t kFirstCapacity = 64;

std::size_t scale_bytes(const Scheme& scheme) { return scheme.has_scales() ? scheme.scale.bits / 8u : 0u; }

/// A buffer of `bytes` that begins with what was there.
Buffer grown(const Buffer& old, std::size_t bytes) {
  Buffer buffer = Buffer::allocate(bytes);
  if (old.size() > 0) std::memcpy(buffer.data(), old.data(), std::min(old.size(), bytes));
  return buffer;
}

Buffer slice(const Buffer& buffer, std::size_t begin, std::size_t bytes) { return Buffer::borrow(buffer.data() + begin, bytes); }

}  // namespace

void KvCache::State::reserve(Rows& rows, std::int64_t positions) const {
  if (positions <= rows.capacity) return;
  rows.capacity = std::max({positions, 2 * rows.capacity, kFirstCapacity});
  const std::size_t count = static_cast<std::size_t>(rows.capacity * kv_heads);
  const std::size_t row_bytes = is_fp32() ? static_cast<std::size_t>(head_dim) * sizeof(float) : packed_row_bytes(scheme, head_dim);
  rows.codes = grown(rows.codes, count * row_bytes);
  if (is_fp32()) return;
  rows.scales = grown(rows.scales, count * scale_bytes(scheme));
  rows.zero_points = grown(rows.zero_points, scheme.asymmetric ? count : 0);
}

QuantizedTensor KvCache::State::part(const Rows& rows, std::int64_t position, std::int64_t count) const {
  const std::size_t first = static_cast<std::size_t>(position * kv_heads), all = static_cast<std::size_t>(count * kv_heads);
  const std::size_t row = packed_row_bytes(scheme, head_dim), scale = scale_bytes(scheme), zero = scheme.asymmetric ? 1 : 0;
  return {scheme,
          {count * kv_heads, head_dim},
          slice(rows.codes, first * row, all * row),
          slice(rows.scales, first * scale, all * scale),
          slice(rows.zero_points, first * zero, all * zero),
          1.0f};
}

void KvCache::State::write(Rows& rows, std::int64_t position, std::int64_t count, const float* values) const {
  reserve(rows, position + count);
  if (is_fp32()) {
    std::memcpy(rows.codes.as<float>() + position * width(), values, static_cast<std::size_t>(count * width()) * sizeof(float));
    return;
  }
  QuantizedTensor q = part(rows, position, count);
  QuantizeOptions options;
  options.nonfinite = NonFinite::kSaturate;
  quantize_into(Tensor::borrow(values, DType::kF32, q.shape), q, options);
}

const float* KvCache::State::read(const Rows& rows, std::int64_t count, Buffer& scratch) const {
  if (is_fp32()) return rows.codes.as<float>();
  const std::size_t bytes = static_cast<std::size_t>(count * width()) * sizeof(float);
  if (scratch.size() < bytes) scratch = Buffer::allocate(bytes);
  Tensor values = Tensor::borrow(scratch.data(), DType::kF32, {count * kv_heads, head_dim});
  dequantize_into(part(rows, 0, count), values);
  return scratch.as<float>();
}

KvCache::KvCache(const ModelConfig& config, const Scheme& scheme, Device device) : state_(std::make_unique<State>()) {
  const Granularity& granularity = scheme.granularity;
  const bool by_row = granularity.kind == Granularity::Kind::kNone ||
                      (granularity.kind == Granularity::Kind::kRectangle && granularity.rows == 1 && granularity.cols == 0);
  if (scheme.element.bits != 32 && (!by_row || scheme.has_outer_scale))
    throw InvalidArgument(
        fmt::format("a KV cache is fp32, fp16, bf16 or a scheme with one scale per row such as int8:row, not {}", scheme.to_string()));
  state_->scheme = scheme;
  state_->kv_heads = config.kv_heads;
  state_->head_dim = config.head_dim;
  state_->layer_count = config.layers;
  if (device.is_cpu())
    state_->layers.resize(static_cast<std::size_t>(config.layers));
  else
    state_->on_device = std::make_shared<model::DeviceCache>(config, scheme, device);
}

Scheme KvCache::parse_scheme(std::string_view text) {
  Scheme scheme = Scheme::parse(text);
  if (text == "fp16" || text == "bf16") scheme.granularity = Granularity::none();
  return scheme;
}

KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

std::int64_t KvCache::size() const { return state_->size; }

void KvCache::truncate(std::int64_t size) {
  if (size < 0 || size > state_->size)
    throw InvalidArgument(fmt::format("a cache of {} positions cannot be cut to {}", state_->size, size));
  state_->size = size;
}

std::size_t KvCache::byte_size() const {
  std::size_t bytes = state_->on_device ? state_->on_device->byte_size() : 0;
  for (const State::Layer& layer : state_->layers)
    for (const State::Rows* rows : {&layer.keys, &layer.values})
      bytes += rows->codes.size() + rows->scales.size() + rows->zero_points.size();
  return bytes;
}

}  // namespace narrow
