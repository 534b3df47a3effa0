/// The decoder: embedding; per layer attention and a gated MLP or a mixture of them, each behind an RMSNorm and added to the stream; norm
/// and head. All layers for some sequences (forward), or one layer after the other for all of a text (walk_layers).

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <omp.h>

#include "device/float_environment.h"
#include "dispatch/attention.h"
#include "dispatch/fused.h"
#include "io/spill.h"
#include "kernels/storage.h"
#include "model/cuda/device_decoder.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "model/router.h"
#include "model/text_batches.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using model::LayerWeights;
using model::Linear;
using model::LinearInput;

/// Elements of work below which waking threads costs more than it saves.
constexpr std::int64_t kWorthThreads = 1 << 15;
/// Tokens of one attention task: enough to pay for transposing its keys, few enough to share among threads.
constexpr std::int64_t kTaskTokens = 128;

/// RMSNorm or SiLU-and-multiply of rows, by the kernels that also quantize.
Tensor run_fused(const FusedProblem& problem, Shape shape) {
  Tensor y = Tensor::empty(DType::kF32, std::move(shape));
  const FusedKernel& kernel = find(problem);
  float* out = y.as<float>();
#pragma omp parallel if (problem.rows * problem.cols > kWorthThreads)
  {
    const FloatEnvironment environment;
    const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const std::int64_t begin = problem.rows * thread / threads, end = problem.rows * (thread + 1) / threads;
    if (begin < end) kernel.run(problem, begin, end, out + begin * problem.cols);
  }
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) {
  const std::int64_t cols = weight.size();
  return run_fused({.op = FusedOp::kRmsNorm,
                    .rows = x.size() / cols,
                    .cols = cols,
                    .x = x.data(),
                    .x_stride = cols,
                    .weight = weight.data(),
                    .epsilon = epsilon},
                   x.shape());
}

Tensor silu_multiply(const Tensor& gate, const Tensor& up) {
  const std::int64_t cols = gate.shape().back();
  return run_fused({.op = FusedOp::kSiluMul,
                    .rows = gate.size() / cols,
                    .cols = cols,
                    .x = gate.data(),
                    .x_stride = cols,
                    .other = up.data(),
                    .other_stride = cols},
                   gate.shape());
}

Tensor sum_of(const Tensor& a, const Tensor& b) {
  Tensor sum = Tensor::empty(DType::kF32, a.shape());
  for (std::int64_t i = 0; i < a.size(); ++i) sum.as<float>()[i] = a.as<float>()[i] + b.as<float>()[i];
  return sum;
}

/// The rows of the batch that belong to a sequence, and where they stand in it.
struct Span {
  KvCache::State* cache = nullptr;
  std::int64_t row = 0, tokens = 0;
  std::int64_t position = 0;  ///< of the first token
  model::RopeTable rope{};
};

class Forward {
 public:
  Forward(const Model::State& state, std::span<const Sequence> sequences, const InputObserver& observer)
      : state_(state), config_(state.config), observer_(observer) {
    for (const Sequence& sequence : sequences) {
      if (sequence.cache == nullptr || sequence.tokens.empty())
        throw InvalidArgument("forward: a sequence needs a cache and at least one token");
      KvCache::State& cache = sequence.cache->state();
      for (const Span& other : spans_)
        if (other.cache == &cache) throw InvalidArgument("forward: two sequences share a cache");
      if (cache.on_device) throw InvalidArgument("forward: the cache is on a CUDA device and the model on the CPU");
      if (static_cast<std::int64_t>(cache.layers.size()) != config_.layers || cache.width() != config_.kv_heads * config_.head_dim)
        throw InvalidArgument("forward: the cache was made for another model");
      Span span{.cache = &cache, .row = rows_, .tokens = static_cast<std::int64_t>(sequence.tokens.size()), .position = cache.size};
      span.rope =
          model::rope_table(model::rope_frequencies(config_.rope, config_.head_dim, config_.max_positions, span.position + span.tokens),
                            span.position, span.tokens);
      rows_ += span.tokens;
      spans_.push_back(std::move(span));
      for (const std::int32_t token : sequence.tokens) {
        if (token < 0 || token >= config_.vocabulary)
          throw InvalidArgument(fmt::format("forward: token {} is none of the {} of the vocabulary", token, config_.vocabulary));
        tokens_.push_back(token);
      }
    }
  }

  Tensor run(Logits logits) {
    start();
    for (std::size_t i = 0; i < state_.layers.size(); ++i) {
      const LayerWeights& w = state_.layers[i];
      const Tensor input = attention_input(i);
      observe({&w.q, &w.k, &w.v}, input);
      const Tensor mixed = mix(i, input);
      observe({&w.o}, mixed);
      add(w.o, mixed);
      const Tensor mlp = mlp_input(i);
      if (w.router) observe({&*w.router}, mlp);
      route(i, mlp);
      for (std::size_t e = 0; e < w.mlps.size(); ++e) {
        const Tensor seen = expert_input(e, mlp);
        if (seen.size() == 0) continue;
        observe({&w.mlps[e].gate, &w.mlps[e].up}, seen);
        const Tensor gated = gate(i, e, seen);
        observe({&w.mlps[e].down}, gated);
        add_mlp(i, e, gated);
      }
      finish_mlps();
    }
    for (Span& span : spans_) span.cache->size += span.tokens;
    if (logits == Logits::kLast) x_ = last_rows();
    return LinearInput(rms_norm(x_, state_.final_norm, config_.norm_epsilon)).through(state_.head);
  }

  // One layer's steps, each from the one before: input of q, k and v; of o; of the MLPs; then for each of them (the only one, or an expert
  // and the rows that it sees) input of gate and up; of down.
  void start() { x_ = embed(); }
  Tensor attention_input(std::size_t index) const { return rms_norm(x_, state_.layers[index].attention_norm, config_.norm_epsilon); }
  Tensor mix(std::size_t index, const Tensor& x) {
    const LayerWeights& w = state_.layers[index];
    LinearInput input(x);
    Tensor q = input.through(w.q), k = input.through(w.k);
    const Tensor v = input.through(w.v);
    place_heads(q, config_.heads, w.q_norm);
    place_heads(k, config_.kv_heads, w.k_norm);
    return attend(index, q, k, v);
  }
  Tensor mlp_input(std::size_t index) const { return rms_norm(x_, state_.layers[index].mlp_norm, config_.norm_epsilon); }
  void route(std::size_t index, const Tensor& mlp_input) {
    const LayerWeights& w = state_.layers[index];
    routes_.clear();
    if (!w.router) return;
    routes_ = model::route_rows(LinearInput(mlp_input).through(*w.router), *config_.experts);
    experts_sum_ = Tensor::empty(DType::kF32, x_.shape());
    std::fill_n(experts_sum_.as<float>(), experts_sum_.size(), 0.0f);
  }
  Tensor expert_input(std::size_t expert, const Tensor& mlp_input) const {
    return routes_.empty() ? mlp_input : model::routed_rows(mlp_input, routes_[expert]);
  }
  Tensor gate(std::size_t index, std::size_t expert, const Tensor& x) const {
    const model::GatedMlp& mlp = state_.layers[index].mlps[expert];
    LinearInput input(x);
    const Tensor gate = input.through(mlp.gate);
    return silu_multiply(gate, input.through(mlp.up));
  }
  void add_mlp(std::size_t index, std::size_t expert, const Tensor& gated) {
    const Linear& down = state_.layers[index].mlps[expert].down;
    if (routes_.empty()) return add(down, gated);
    model::add_routed(experts_sum_, LinearInput(gated).through(down), routes_[expert]);
  }
  void finish_mlps() {
    if (!routes_.empty()) x_ = sum_of(x_, experts_sum_);
    experts_sum_ = {};
  }
  /// Adds o or down of x to the stream.
  void add(const Linear& linear, const Tensor& x) { x_ = LinearInput(x).through(linear, x_); }
  const Tensor& stream() const { return x_; }
  void keep_stream(const io::Spill& spill) { x_ = spill.keep(x_); }

 private:
  Tensor embed() const {
    const Tensor x = Tensor::empty(DType::kF32, {rows_, config_.hidden});
#pragma omp parallel for schedule(static) if (rows_ * config_.hidden > kWorthThreads)
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t i = 0; i < config_.hidden; ++i)
        x.as<float>()[row * config_.hidden + i] =
            load_value(state_.embedding.data(), state_.embedding.dtype(), tokens_[static_cast<std::size_t>(row)] * config_.hidden + i);
    return x;
  }

  Tensor last_rows() const {
    Tensor last = Tensor::empty(DType::kF32, {static_cast<std::int64_t>(spans_.size()), config_.hidden});
    for (std::size_t i = 0; i < spans_.size(); ++i)
      std::copy_n(x_.as<float>() + (spans_[i].row + spans_[i].tokens - 1) * config_.hidden, config_.hidden,
                  last.as<float>() + static_cast<std::int64_t>(i) * config_.hidden);
    return last;
  }

  void observe(std::initializer_list<const Linear*> linears, const Tensor& x) const {
    if (!observer_) return;
    std::vector<std::string> modules;
    for (const Linear* linear : linears) modules.push_back(linear->module);
    observer_(modules, x);
  }

  /// q or k: the norm of its heads where the model has one, then RoPE.
  void place_heads(Tensor& heads, std::int64_t count, const std::optional<Tensor>& norm) const {
    if (norm) heads = rms_norm(heads, *norm, config_.norm_epsilon);
    for (const Span& span : spans_) {
#pragma omp parallel for schedule(static) if (span.tokens * count * config_.head_dim > kWorthThreads)
      for (std::int64_t token = 0; token < span.tokens; ++token)
        for (std::int64_t head = 0; head < count; ++head)
          turn_head(span.rope, token, heads.as<float>() + ((span.row + token) * count + head) * config_.head_dim);
    }
  }

  /// The problems of one layer: one per sequence and key head.
  std::vector<AttentionProblem> problems(std::size_t index, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out) {
    std::vector<AttentionProblem> problems;
    const std::int64_t width = config_.kv_heads * config_.head_dim, group = config_.heads / config_.kv_heads,
                       q_width = config_.heads * config_.head_dim;
    decoded_.resize(spans_.size());
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const Span& span = spans_[i];
      KvCache::State::Layer& layer = span.cache->layers[index];
      span.cache->write(layer.keys, span.position, span.tokens, k.as<float>() + span.row * width);
      span.cache->write(layer.values, span.position, span.tokens, v.as<float>() + span.row * width);
      const float* keys = span.cache->read(layer.keys, span.position + span.tokens, decoded_[i][0]);
      const float* values = span.cache->read(layer.values, span.position + span.tokens, decoded_[i][1]);
      for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
        const std::int64_t first = span.row * q_width + head * group * config_.head_dim;
        problems.push_back({.tokens = span.tokens,
                            .heads = group,
                            .head_dim = config_.head_dim,
                            .first_position = span.position,
                            .window = config_.windows[index],
                            .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                            .q = q.as<float>() + first,
                            .q_stride = q_width,
                            .k = keys + head * config_.head_dim,
                            .v = values + head * config_.head_dim,
                            .kv_stride = width,
                            .out = out.as<float>() + first,
                            .out_stride = q_width,
                            .in_fp64 = state_.keeps_fp32});
      }
    }
    return problems;
  }

  Tensor attend(std::size_t index, const Tensor& q, const Tensor& k, const Tensor& v) {
    Tensor out = Tensor::empty(DType::kF32, q.shape());
    struct Task {
      const AttentionProblem* problem;
      std::int64_t begin, end;
    };
    const std::vector<AttentionProblem> all = problems(index, q, k, v, out);
    const AttentionKernel& kernel = find(all.front());
    std::vector<Task> tasks;
    std::size_t scratch_bytes = 0;
    for (const AttentionProblem& problem : all)
      for (std::int64_t end = problem.tokens; end > 0; end = tasks.back().begin) {  // the longest first
        tasks.push_back({&problem, std::max<std::int64_t>(0, end - kTaskTokens), end});
        scratch_bytes = std::max(scratch_bytes, kernel.scratch_bytes(problem, tasks.back().begin, end));
      }
    scratch_bytes = (scratch_bytes + 63) / 64 * 64;
    const Buffer scratch = Buffer::allocate(scratch_bytes * static_cast<std::size_t>(omp_get_max_threads()));
    const std::int64_t count = static_cast<std::int64_t>(tasks.size());
    std::int64_t work = 0;
    for (const Task& task : tasks)
      work += (task.end - task.begin) * task.problem->heads * task.problem->end_key(task.end - 1) * config_.head_dim;
#pragma omp parallel if (work > 8 * kWorthThreads)
    {
      const FloatEnvironment environment;
      std::byte* mine = scratch.data() + scratch_bytes * static_cast<std::size_t>(omp_get_thread_num());
#pragma omp for schedule(dynamic)
      for (std::int64_t i = 0; i < count; ++i) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        kernel.run(*task.problem, task.begin, task.end, mine);
      }
    }
    return out;
  }

  const Model::State& state_;
  const ModelConfig& config_;
  const InputObserver& observer_;
  std::vector<Span> spans_;
  std::vector<std::int64_t> tokens_;
  std::int64_t rows_ = 0;
  Tensor x_;                                    ///< the stream [rows, hidden]
  std::vector<model::Route> routes_;            ///< of the layer at hand; empty: it has one MLP
  Tensor experts_sum_;                          ///< what its experts gave so far
  std::vector<std::array<Buffer, 2>> decoded_;  ///< fp32 keys and values of narrow caches, one layer at a time
};

}  // namespace

Tensor Model::forward(std::span<const Sequence> sequences, Logits logits, const InputObserver& observer) const {
  if (sequences.empty()) return Tensor::empty(DType::kF32, {0, state_->config.vocabulary});
  if (state_->on_device) return state_->on_device->forward(sequences, logits, observer);
  return Forward(*state_, sequences, observer).run(logits);
}

namespace {

/// A text on its way through a model, one layer's step at a time for all batches.
class Walk {
 public:
  Walk(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, const io::Spill& spill)
      : state_(model::load_state(path, {})), spill_(spill) {
    constexpr std::size_t kTokens = 2048;
    // Every batch writes the same caches, one layer at a time, and nobody reads them afterwards.
    std::vector<WindowRange> cuts;
    for (const WindowRange& chunk : text_chunks(windows)) {
      const std::vector<WindowRange> parts = cut_windows(windows, chunk, kTokens);
      cuts.insert(cuts.end(), parts.begin(), parts.end());
      chunk_ends_.push_back(cuts.size());
    }
    for (const WindowRange& cut : cuts)
      while (caches_.size() < cut.last - cut.first) caches_.emplace_back(state_->config, Scheme::parse("fp32"));
    for (const WindowRange& cut : cuts) {
      std::vector<Sequence> sequences;
      for (std::size_t i = cut.first; i < cut.last; ++i) sequences.push_back({windows[i], &caches_[i - cut.first]});
      batches_.emplace_back(*state_, sequences, nobody_);
    }
    inputs_.resize(batches_.size());
    for (Forward& batch : batches_) {
      batch.start();
      batch.keep_stream(spill_);
    }
  }

  LayerWeights& layer(std::size_t index) { return state_->layers[index]; }
  std::size_t layers() const { return state_->layers.size(); }
  std::span<const Tensor> inputs() const { return inputs_; }
  std::span<const std::size_t> chunk_ends() const { return chunk_ends_; }

  void to_attention(std::size_t i) {
    each([&](Forward& batch, const Tensor&) { return batch.attention_input(i); });
  }
  void to_o(std::size_t i) {
    each([&](Forward& batch, const Tensor& x) { return batch.mix(i, x); });
  }
  void to_mlps(std::size_t i) {
    each([&](Forward& batch, const Tensor& x) {
      batch.add(layer(i).o, x);
      const Tensor input = batch.mlp_input(i);
      batch.route(i, input);
      return input;
    });
    if (layer(i).router) mlp_inputs_ = inputs_;
  }
  void to_expert(std::size_t i, std::size_t expert) {
    if (!layer(i).router) return;  // its input is that of all rows
    for (std::size_t b = 0; b < batches_.size(); ++b) inputs_[b] = spill_.keep(batches_[b].expert_input(expert, mlp_inputs_[b]));
  }
  void to_down(std::size_t i, std::size_t expert) {
    each([&](Forward& batch, const Tensor& x) { return batch.gate(i, expert, x); });
  }
  void add_mlp(std::size_t i, std::size_t expert) {
    each([&](Forward& batch, const Tensor& x) { return batch.add_mlp(i, expert, x), Tensor(); });
  }
  void finish() {
    mlp_inputs_.clear();
    each([&](Forward& batch, const Tensor&) { return batch.finish_mlps(), Tensor(); });
  }

  /// The other walk's streams less this one's.
  std::vector<Tensor> missing(const Walk& other) const {
    std::vector<Tensor> result;
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      const Tensor &mine = batches_[b].stream(), &theirs = other.batches_[b].stream();
      result.push_back(Tensor::empty(DType::kF32, mine.shape()));
      for (std::int64_t i = 0; i < mine.size(); ++i) result.back().as<float>()[i] = theirs.as<float>()[i] - mine.as<float>()[i];
      result.back() = spill_.keep(result.back());
      for (const Tensor& stream : {mine, theirs}) spill_.rest(stream);
    }
    return result;
  }

 private:
  template <typename Step>
  void each(const Step& step) {
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      const Tensor before = batches_[b].stream();
      inputs_[b] = spill_.keep(step(batches_[b], inputs_[b]));
      if (batches_[b].stream().data() != before.data()) batches_[b].keep_stream(spill_);
      spill_.rest(batches_[b].stream());
    }
  }

  std::shared_ptr<Model::State> state_;
  io::Spill spill_;
  const InputObserver nobody_;
  std::vector<KvCache> caches_;
  std::vector<Forward> batches_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> mlp_inputs_;  ///< of a layer's MLPs, before the rows of each expert are picked
  std::vector<std::size_t> chunk_ends_;
};

}  // namespace

void walk_layers(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, bool with_plain,
                 const LayerVisitor& visit, const std::filesystem::path& place) {
  const io::Spill spill(place);
  Walk walk(path, windows, spill);
  std::optional<Walk> plain;
  if (with_plain) plain.emplace(path, windows, spill);
  const auto step = [&](auto go, auto... where) {
    (walk.*go)(where...);
    if (plain) ((*plain).*go)(where...);
  };
  const auto show = [&](std::initializer_list<Linear*> linears, bool joins_stream) {
    const std::span<const Tensor> parts = walk.inputs();
    if (std::all_of(parts.begin(), parts.end(), [](const Tensor& x) { return x.size() == 0; })) return;  // an expert without a row
    std::vector<std::string> modules;
    for (const Linear* linear : linears) modules.push_back(linear->module);
    std::vector<Tensor> missing;
    if (plain && joins_stream) missing = walk.missing(*plain);
    const std::map<std::string, QuantizedTensor> replaced =
        visit({modules, parts, plain ? plain->inputs() : std::span<const Tensor>(), missing, walk.chunk_ends(),
               [&](const Tensor& part) { spill.rest(part); }});
    for (Linear* linear : linears)
      if (const auto found = replaced.find(linear->module); found != replaced.end()) linear->weight = prepare(found->second);
  };
  for (std::size_t i = 0; i < walk.layers(); ++i) {
    LayerWeights& w = walk.layer(i);
    step(&Walk::to_attention, i);
    show({&w.q, &w.k, &w.v}, false);
    step(&Walk::to_o, i);
    show({&w.o}, true);
    step(&Walk::to_mlps, i);
    for (std::size_t e = 0; e < w.mlps.size(); ++e) {
      step(&Walk::to_expert, i, e);
      show({&w.mlps[e].gate, &w.mlps[e].up}, false);
      step(&Walk::to_down, i, e);
      show({&w.mlps[e].down}, true);
      step(&Walk::add_mlp, i, e);
    }
    step(&Walk::finish);
  }
}

}  // namespace narrow
