#include "model/cuda/device_decoder.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/decoder/exact.h"
#include "model/cuda/views.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

using cuda::check;

/// Rows of a sequence from which tiles of 128 pay.
constexpr std::int64_t kTileWorth = 16;

Tensor first_rows(const Tensor& x, std::int64_t rows) { return Tensor::borrow(x.data(), x.dtype(), {rows, x.shape()[1]}, {}, x.device()); }
std::int64_t qkv_width(const ModelConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_dim; }
std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }

/// Copies arrays behind one another, each at a multiple of 16 bytes.
class Packed {
 public:
  template <typename T>
  std::size_t add(const std::vector<T>& values) {
    const std::size_t at = data_.size();
    const std::span<const std::byte> more = std::as_bytes(std::span(values));
    data_.insert(data_.end(), more.begin(), more.end());
    while (data_.size() % 16 != 0) data_.push_back(std::byte{0});
    return at;
  }
  const std::vector<std::byte>& data() const { return data_; }

 private:
  std::vector<std::byte> data_;
};

void check_sequence(const ModelConfig& config, const Sequence& sequence, Device device) {
  if (sequence.cache == nullptr || sequence.tokens.empty())
    throw InvalidArgument("forward: a sequence needs a cache and at least one token");
  const KvCache::State& cache = sequence.cache->state();
  if (!cache.on_device || cache.on_device->device() != device)
    throw InvalidArgument("forward: the cache is not on the model's device; make it with the model's make_cache");
  if (cache.layer_count != config.layers || cache.kv_heads != config.kv_heads || cache.head_dim != config.head_dim)
    throw InvalidArgument("forward: the cache was made for another model");
  for (const std::int32_t token : sequence.tokens)
    if (token < 0 || token >= config.vocabulary)
      throw InvalidArgument(fmt::format("forward: token {} is none of the {} of the vocabulary", token, config.vocabulary));
}

}  // namespace

std::uint64_t DeviceWeights::bytes_per_step(std::int64_t rows) const {
  std::uint64_t total = head.byte_size();
  for (const DeviceLayer& layer : layers) {
    for (const DeviceLinear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) total += linear->byte_size();
    if (!layer.experts) continue;
    const double count = static_cast<double>(config.experts->count), unmet = 1.0 - static_cast<double>(config.experts->per_token) / count;
    total += layer.experts->router_bytes() + static_cast<std::uint64_t>(static_cast<double>(layer.experts->expert_bytes()) * count *
                                                                        (1.0 - std::pow(unmet, static_cast<double>(rows))));
  }
  return total;
}

PassScratch PassScratch::allocate(const DeviceWeights& weights, std::int64_t rows, std::int64_t logit_rows) {
  const ModelConfig& config = weights.config;
  const Device device = weights.device;
  // fp16 of all rows, or fp32 of few ones; of all where it is kept.
  const std::int64_t fp32_rows = weights.keeps_fp32 ? rows : std::min(rows, kFewRows);
  const auto bytes_for = [&](std::int64_t width) { return bytes(width * std::max(2 * rows, 4 * fp32_rows)); };
  const std::int64_t pitch = (config.head_dim + 7) / 8 * 8;
  PassScratch s;
  s.rows = rows;
  s.logit_rows = logit_rows;
  s.stream = Tensor::empty(DType::kF32, {rows, config.hidden}, device);
  s.logits = Tensor::empty(DType::kF32, {logit_rows, config.vocabulary}, device);
  s.qkv = Buffer::allocate(bytes_for(qkv_width(config)), device);
  s.q = Buffer::allocate(bytes_for(config.heads * pitch), device);
  s.mixed = Buffer::allocate(bytes(rows * config.heads * config.head_dim * 4), device);
  s.gate_up = Buffer::allocate(bytes_for(2 * config.intermediate), device);
  s.delta = Buffer::allocate(weights.is_many(rows) ? bytes(rows * config.hidden * 4) : 0, device);
  s.picked = Buffer::allocate(bytes(logit_rows * config.hidden * 4), device);
  if (config.experts) s.experts = ExpertsScratch::allocate(config, rows, device);
  const std::int64_t most_outputs = std::max({qkv_width(config), config.hidden, 2 * config.intermediate, config.vocabulary});
  std::int64_t most_decoded = weights.head.decoded_weights(rows);
  for (const DeviceLayer& layer : weights.layers)
    for (const DeviceLinear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      most_decoded = std::max(most_decoded, linear->decoded_weights(rows));
  s.input = InputScratch::allocate(rows, std::max({config.hidden, config.intermediate, config.heads * config.head_dim}),
                                   weights.keeps_fp32 ? most_outputs : 0, most_decoded, device);
  return s;
}

DeviceDecoder::DeviceDecoder(DeviceWeights weights) : weights_(std::move(weights)), stream_(weights_.device.index) {
  if (config().head_dim > cuda::kMostHeadDim)
    throw Unsupported(
        fmt::format("the CUDA executor has heads of up to {} values, the model's have {}", cuda::kMostHeadDim, config().head_dim));
}

std::pair<const float*, const float*> DeviceDecoder::rope_tables(std::int64_t positions) const {
  const std::int64_t pairs = config().head_dim / 2;
  if (positions > table_size_) {
    const std::int64_t size = std::max(positions, 2 * table_size_);
    const RopeTable table = rope_table(rope_frequencies(config().rope, config().head_dim, config().max_positions, 1), 0, size);
    cuda::synchronize(stream_);
    table_ = Buffer::allocate(bytes(2 * size * pairs) * sizeof(float), weights_.device);
    cuda::copy_bytes(table_.data(), table.cosine.data(), bytes(size * pairs) * sizeof(float), stream_);
    cuda::copy_bytes(table_.as<float>() + size * pairs, table.sine.data(), bytes(size * pairs) * sizeof(float), stream_);
    cuda::synchronize(stream_);
    table_size_ = size;
  }
  return {table_.as<float>(), table_.as<float>() + table_size_ * pairs};
}

void DeviceDecoder::observe(const DeviceSource& source, const PassScratch& scratch, std::span<const std::string> modules,
                            const InputObserver& observer) const {
  if (!observer) return;
  const Tensor values = cuda::to_host(source_values(source, DType::kF32, scratch.input.values, stream_), stream_);
  observer(modules, values);
}

void DeviceDecoder::attend(const DeviceRows& rows, const PassScratch& scratch, std::size_t layer, DType type) const {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layers[layer];
  cuda::HeadsShape shape{static_cast<int>(rows.rows),
                         static_cast<int>(c.heads),
                         static_cast<int>(c.kv_heads),
                         static_cast<int>(c.head_dim),
                         static_cast<int>(layer),
                         rows.kind,
                         rows.caches,
                         rows.sequence_of_row,
                         rows.positions};
  cuda::PlaceHeadsProblem place;
  place.shape = shape;
  place.qkv = scratch.qkv.data();
  place.type = type;
  place.q_norm = w.q_norm ? w.q_norm->as<float>() : nullptr;
  place.k_norm = w.k_norm ? w.k_norm->as<float>() : nullptr;
  place.epsilon = c.norm_epsilon;
  place.cosine = rows.cosine;
  place.sine = rows.sine;
  place.table_rows = rows.table_rows;
  place.q = scratch.q.data();
  cuda::AttendProblem problem;
  problem.shape = shape;
  problem.places = rows.rows == rows.sequences && rows.tile_count == 0 && !weights_.keeps_fp32;
  if (problem.places)
    problem.place = place;
  else
    check(cuda::launch_place_heads(place, stream_), "place_heads");
  problem.q = scratch.q.data();
  problem.q_type = type;
  problem.window = static_cast<int>(c.windows.empty() ? 0 : c.windows[layer]);
  problem.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  problem.out = scratch.mixed.data();
  problem.out_type = w.o.source_type(weights_.is_many(rows.rows));
  problem.tiles = rows.tiles;
  problem.tile_count = rows.tile_count;
  const auto launch =
      weights_.keeps_fp32 ? cuda::launch_attend_exact : (rows.tile_count > 0 ? cuda::launch_attend_tiles : cuda::launch_attend_rows);
  check(launch(problem, stream_), "attention");
}

std::optional<Tensor> DeviceDecoder::run_layers(const DeviceRows& rows, const PassScratch& scratch, const InputObserver& observer) const {
  const ModelConfig& c = config();
  const cuda::DeviceGuard guard(weights_.device.index);
  const bool many = weights_.is_many(rows.rows);
  const DType type = many ? DType::kF16 : DType::kF32;
  const Tensor stream = first_rows(scratch.stream, rows.rows);
  const Tensor qkv = view(scratch.qkv, type, {rows.rows, qkv_width(c)}),
               gate_up = view(scratch.gate_up, type, {rows.rows, 2 * c.intermediate});
  check(cuda::launch_embed(rows.tokens, rows.rows, weights_.embedding.data(), weights_.embedding.dtype(), c.hidden, stream.as<float>(),
                           stream_),
        "embed");
  // Products of many rows store whole boxes where they add nothing: the next norm adds what they give to the stream.
  std::optional<Tensor> delta;
  const auto run = [&](const DeviceLinear& linear, const DeviceSource& source, std::span<const std::string> modules, const Tensor& y) {
    observe(source, scratch, modules, observer);
    linear.run(source, scratch.input, y, stream_);
  };
  const auto add = [&](const DeviceLinear& linear, const DeviceSource& source, std::span<const std::string> modules,
                       const DeviceLinear& next) {
    observe(source, scratch, modules, observer);
    if (many && !observer) delta = view(scratch.delta, next.delta_type(), stream.shape());
    linear.run(source, scratch.input, delta ? *delta : stream, stream_, delta ? std::nullopt : std::optional(stream));
  };
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    const DeviceLayer& w = weights_.layers[i];
    const std::span<const std::string> names = w.names;
    run(w.qkv, {DeviceSource::Op::kNorm, stream, w.attention_norm, c.norm_epsilon, delta}, names.subspan(0, 3), qkv);
    attend(rows, scratch, i, type);
    const Tensor mixed = view(scratch.mixed, w.o.source_type(many), {rows.rows, c.heads * c.head_dim});
    add(w.o, {DeviceSource::Op::kValues, mixed, {}, 0.0f, {}}, names.subspan(3, 1), w.gate_up);
    if (w.experts) {
      if (observer) throw Unsupported("the CUDA executor does not show what experts see; calibrate on the CPU");
      const Tensor x =
          source_values({DeviceSource::Op::kNorm, stream, w.mlp_norm, c.norm_epsilon, delta}, DType::kF32, scratch.input.values, stream_);
      delta.reset();
      w.experts->run(x, scratch.experts, many, stream, stream_);
      continue;
    }
    run(w.gate_up, {DeviceSource::Op::kNorm, stream, w.mlp_norm, c.norm_epsilon, delta}, names.subspan(4, 2), gate_up);
    add(w.down, {DeviceSource::Op::kGate, gate_up, {}, 0.0f, {}}, names.subspan(6, 1),
        i + 1 < weights_.layers.size() ? weights_.layers[i + 1].qkv : weights_.head);
  }
  return delta;
}

void DeviceDecoder::run_head(const PassScratch& scratch, const std::optional<Tensor>& delta, std::int64_t rows,
                             const std::int32_t* picked) const {
  const cuda::DeviceGuard guard(weights_.device.index);
  const Tensor x = view(scratch.picked, weights_.head.source_type(false), {rows, config().hidden});
  cuda::NormProblem norm{.rows = rows, .cols = config().hidden, .x = scratch.stream.as<float>()};
  if (delta) {
    norm.delta = delta->data();
    norm.delta_type = delta->dtype();
  }
  norm.rows_of = picked;
  norm.weight = weights_.final_norm.as<float>();
  norm.epsilon = config().norm_epsilon;
  norm.y = x.data();
  norm.y_type = x.dtype();
  check(cuda::launch_rms_norm(norm, stream_), "rms_norm");
  weights_.head.run({DeviceSource::Op::kValues, x, {}, 0.0f, {}}, scratch.input, first_rows(scratch.logits, rows), stream_);
}

DeviceRows DeviceDecoder::place_rows(std::span<const Sequence> sequences, Buffer& upload) const {
  const ModelConfig& c = config();
  std::vector<std::int32_t> tokens, positions, table_rows, sequence_of_row, last;
  std::vector<cuda::CacheView> caches;
  std::vector<cuda::AttendTile> tiles;
  std::int64_t longest = 0;
  for (const Sequence& sequence : sequences) check_sequence(c, sequence, weights_.device);
  const cuda::CacheKind kind = sequences.front().cache->state().on_device->kind();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    KvCache::State& cache = sequences[i].cache->state();
    for (std::size_t j = 0; j < i; ++j)
      if (sequences[j].cache == sequences[i].cache) throw InvalidArgument("forward: two sequences share a cache");
    if (cache.on_device->kind() != kind) throw InvalidArgument("forward: the caches of one pass must be in one scheme");
    const std::int64_t count = static_cast<std::int64_t>(sequences[i].tokens.size()), row = static_cast<std::int64_t>(tokens.size());
    cache.on_device->reserve(cache.size + count, cache.size, stream_);
    caches.push_back(cache.on_device->view());
    for (std::int64_t t = 0; t < count; ++t) {
      tokens.push_back(sequences[i].tokens[static_cast<std::size_t>(t)]);
      positions.push_back(static_cast<std::int32_t>(cache.size + t));
      sequence_of_row.push_back(static_cast<std::int32_t>(i));
    }
    for (std::int64_t t = 0; t < count; t += cuda::kTileRows)
      tiles.push_back({static_cast<std::int32_t>(row + t), static_cast<std::int32_t>(std::min<std::int64_t>(cuda::kTileRows, count - t)),
                       static_cast<std::int32_t>(cache.size + t), static_cast<std::int32_t>(i)});
    last.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
    longest = std::max(longest, cache.size + count);
  }
  DeviceRows rows;
  rows.rows = static_cast<std::int64_t>(tokens.size());
  rows.sequences = static_cast<std::int64_t>(sequences.size());
  rows.kind = kind;
  table_rows = positions;
  std::vector<float> own_cosine, own_sine;
  if (c.rope.kind == RopeConfig::Kind::kDynamic && longest > c.max_positions) {
    // The frequencies depend on the length at hand: every sequence has a table of its own.
    for (std::size_t i = 0, row = 0; i < sequences.size(); ++i) {
      const std::int64_t first = sequences[i].cache->state().size, count = static_cast<std::int64_t>(sequences[i].tokens.size());
      const RopeTable table = rope_table(rope_frequencies(c.rope, c.head_dim, c.max_positions, first + count), first, count);
      own_cosine.insert(own_cosine.end(), table.cosine.begin(), table.cosine.end());
      own_sine.insert(own_sine.end(), table.sine.begin(), table.sine.end());
      for (std::int64_t t = 0; t < count; ++t, ++row) table_rows[row] = static_cast<std::int32_t>(row);
    }
  } else {
    std::tie(rows.cosine, rows.sine) = rope_tables(longest);
  }
  const bool uses_tiles = weights_.is_many(rows.rows) && rows.rows >= kTileWorth * rows.sequences && c.head_dim <= cuda::kTileHeadDim;
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const cuda::AttendTile& a, const cuda::AttendTile& b) { return a.position < b.position; });
  Packed packed;
  const std::size_t at[] = {packed.add(tokens),  packed.add(positions), packed.add(table_rows), packed.add(sequence_of_row),
                            packed.add(caches),  packed.add(tiles),     packed.add(last),       packed.add(own_cosine),
                            packed.add(own_sine)};
  if (upload.size() < packed.data().size()) upload = Buffer::allocate(2 * packed.data().size(), weights_.device);
  cuda::copy_bytes(upload.data(), packed.data().data(), packed.data().size(), stream_);
  cuda::synchronize(stream_);  // the host's memory ends with this call
  const auto place = [&]<typename T>(std::size_t i, T*& pointer) { pointer = reinterpret_cast<T*>(upload.data() + at[i]); };
  place(0, rows.tokens);
  place(1, rows.positions);
  place(2, rows.table_rows);
  place(3, rows.sequence_of_row);
  place(4, rows.caches);
  place(5, rows.tiles);
  rows.tile_count = uses_tiles ? static_cast<int>(tiles.size()) : 0;
  place(6, rows.last);
  if (!own_cosine.empty()) place(7, rows.cosine), place(8, rows.sine);
  return rows;
}

Tensor DeviceDecoder::forward_on_device(std::span<const Sequence> sequences, Logits logits, const InputObserver& observer) const {
  const cuda::DeviceGuard guard(weights_.device.index);
  const DeviceRows rows = place_rows(sequences, upload_);
  const std::int64_t logit_rows = logits == Logits::kLast ? rows.sequences : rows.rows;
  if (scratch_.rows < rows.rows || scratch_.logit_rows < logit_rows) {
    scratch_ = {};  // before the larger one
    scratch_ = PassScratch::allocate(weights_, rows.rows, logit_rows);
  }
  const std::optional<Tensor> delta = run_layers(rows, scratch_, observer);
  run_head(scratch_, delta, logit_rows, logits == Logits::kLast ? rows.last : nullptr);
  for (const Sequence& sequence : sequences) sequence.cache->state().size += static_cast<std::int64_t>(sequence.tokens.size());
  return first_rows(scratch_.logits, logit_rows);
}

Tensor DeviceDecoder::forward(std::span<const Sequence> sequences, Logits logits, const InputObserver& observer) const {
  const std::lock_guard lock(mutex_);
  return cuda::to_host(forward_on_device(sequences, logits, observer), stream_);
}

Tensor DeviceDecoder::forward_kept(std::span<const Sequence> sequences, Buffer& kept) const {
  const std::lock_guard lock(mutex_);
  const Tensor logits = forward_on_device(sequences, Logits::kAll, {});
  if (kept.size() < logits.byte_size()) {
    kept = {};  // before the larger one
    kept = Buffer::allocate(logits.byte_size(), weights_.device);
  }
  cuda::copy_bytes(kept.data(), logits.data(), logits.byte_size(), stream_);
  cuda::synchronize(stream_);
  return view(kept, DType::kF32, logits.shape());
}

}  // namespace narrow::model
