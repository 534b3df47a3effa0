#include "model/cuda/decode_loop.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "model/kv_cache.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

DecodeLoop::DecodeLoop(const DeviceDecoder& decoder, std::span<KvCache* const> caches, const Tensor& logits, const SampleOptions& sampling,
                       std::int64_t tokens)
    : decoder_(decoder), caches_(caches.begin(), caches.end()), sampling_(sampling), tokens_(tokens) {
  const std::int64_t count = static_cast<std::int64_t>(caches_.size());
  const Device device = decoder.weights().device;
  const cuda::Stream stream = decoder.stream();
  scratch_ = PassScratch::allocate(decoder.weights(), count, count);
  std::vector<cuda::CacheView> views;
  std::vector<std::int32_t> positions, sequences;
  std::int64_t longest = 0;
  for (KvCache* cache : caches_) {
    KvCache::State& state = cache->state();
    state.on_device->reserve(state.size + tokens, state.size, stream);
    views.push_back(state.on_device->view());
    positions.push_back(static_cast<std::int32_t>(state.size) - 1);  // of the token before the first that is drawn
    sequences.push_back(static_cast<std::int32_t>(sequences.size()));
    longest = std::max(longest, state.size + tokens);
  }
  const std::size_t per_row = static_cast<std::size_t>(count) * sizeof(std::int32_t), view_bytes = views.size() * sizeof(cuda::CacheView);
  memory_ = Buffer::allocate(view_bytes + per_row * (4 + static_cast<std::size_t>(tokens)), device);
  rows_.rows = rows_.sequences = count;
  rows_.kind = caches_.front()->state().on_device->kind();
  rows_.caches = memory_.as<cuda::CacheView>();
  rows_.tokens = reinterpret_cast<std::int32_t*>(memory_.data() + view_bytes);
  rows_.positions = rows_.table_rows = rows_.tokens + count;
  rows_.sequence_of_row = rows_.positions + count;
  draws_ = rows_.sequence_of_row + count;
  history_ = draws_ + count;
  std::tie(rows_.cosine, rows_.sine) = decoder.rope_tables(longest);
  cuda::copy_bytes(rows_.caches, views.data(), view_bytes, stream);
  cuda::copy_bytes(rows_.positions, positions.data(), per_row, stream);
  cuda::copy_bytes(rows_.sequence_of_row, sequences.data(), per_row, stream);
  cuda::set_bytes(draws_, 0, per_row, stream);
  cuda::synchronize(stream);
  if (!DecodeStep::obstacle(decoder, count, rows_.kind)) one_kernel_.emplace(decoder, rows_, scratch_.logits);
  sample(logits);
}

void DecodeLoop::sample(const Tensor& logits) const {
  cuda::SampleProblem problem;
  problem.logits = logits.as<float>();
  problem.rows = static_cast<int>(rows_.rows);
  problem.vocabulary = decoder_.config().vocabulary;
  problem.temperature = sampling_.temperature;
  problem.top_k = sampling_.top_k;
  problem.top_p = sampling_.top_p;
  problem.seed = sampling_.seed;
  problem.tokens = rows_.tokens;
  problem.positions = rows_.positions;
  problem.step = draws_;
  problem.history = history_;
  problem.steps = static_cast<std::int32_t>(tokens_);
  cuda::check(cuda::launch_sample(problem, decoder_.stream()), "sample");
}

void DecodeLoop::step() {
  const cuda::DeviceGuard guard(decoder_.weights().device.index);
  const auto enqueue = [&] {
    if (one_kernel_) {
      one_kernel_->enqueue(decoder_.stream());
    } else {
      const std::optional<Tensor> delta = decoder_.run_layers(rows_, scratch_, {});
      decoder_.run_head(scratch_, delta, rows_.rows, nullptr);
    }
    sample(scratch_.logits);
  };
  if (!has_run_) {
    enqueue();  // the first one loads the kernels, which a recording does not do
    has_run_ = true;
  } else {
    if (!graph_) graph_ = std::make_unique<cuda::Graph>(decoder_.stream(), enqueue);
    graph_->launch(decoder_.stream());
  }
  for (KvCache* cache : caches_) ++cache->state().size;
}

std::vector<std::int32_t> DecodeLoop::tokens(std::int64_t first, std::int64_t count) const {
  std::vector<std::int32_t> result(static_cast<std::size_t>(count * rows_.rows));
  cuda::copy_bytes(result.data(), history_ + first * rows_.rows, result.size() * sizeof(std::int32_t), decoder_.stream());
  cuda::synchronize(decoder_.stream());
  return result;
}

Generation generate_on_device(const DeviceDecoder& decoder, const Model& model, std::span<const std::int32_t> prompt,
                              const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token) {
  KvCache cache = model.make_cache(options.cache);
  const RopeConfig& rope = decoder.config().rope;
  const std::int64_t length = static_cast<std::int64_t>(prompt.size()) + options.tokens;
  if (rope.kind == RopeConfig::Kind::kDynamic && length > decoder.config().max_positions)
    throw Unsupported(
        "the CUDA executor generates within the model's own positions where its RoPE is dynamic; ask for fewer tokens, or use the CPU");
  cache.state().on_device->reserve(length, 0, decoder.stream());
  Generation result;
  auto begin = Clock::now();
  const Sequence sequence{prompt, &cache};
  const Tensor logits = decoder.forward_on_device({&sequence, 1}, Logits::kLast, {});
  KvCache* const caches[] = {&cache};
  DecodeLoop loop(decoder, caches, logits, options.sampling, options.tokens);
  cuda::synchronize(decoder.stream());
  result.prompt_seconds = seconds_since(begin);
  begin = Clock::now();
  const std::vector<std::int64_t>& ends = decoder.config().eos;
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    const std::int32_t token = loop.tokens(made, 1).front();
    result.ended = options.stop_at_end && std::find(ends.begin(), ends.end(), token) != ends.end();
    if (result.ended) break;
    result.tokens.push_back(token);
    if (made + 1 < options.tokens) loop.step();  // the device goes on while the caller looks at the token
    if (on_token && !on_token(token)) break;
  }
  cuda::synchronize(decoder.stream());
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace narrow::model
