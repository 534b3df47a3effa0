#include "narrow/model_bench.h"

#include <algorithm>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "model/cuda/decode_loop.h"
#include "model/cuda/device_decoder.h"
#include "model/kv_cache.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using cuda::Stream;
using model::DecodeLoop;
using model::DeviceDecoder;

ModelConfig llama(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t vocabulary, double theta) {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.vocabulary = vocabulary;
  config.max_positions = 8192;
  config.rope.theta = theta;
  config.windows.assign(static_cast<std::size_t>(layers), 0);
  return config;
}

ModelConfig with_experts(ModelConfig config, const char* model_type, const ExpertsConfig& experts, std::int64_t head_dim) {
  config.model_type = model_type;
  config.experts = experts;
  config.head_dim = head_dim;
  return config;
}

/// Bytes per second that memory gives to a kernel that only reads: the best of several runs over 4 GiB.
double read_bandwidth(Device device, Stream stream) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  constexpr int kRuns = 8;
  const Buffer data = Buffer::allocate(kBytes, device), sink = Buffer::allocate(4, device);
  cuda::check(cuda::launch_random(data.data(), DType::kF32, kBytes / 4, 1.0f, 1, stream), "random");
  double best = 0.0;
  cuda::Timer timer;
  for (int i = 0; i < kRuns; ++i) {
    timer.start(stream);
    cuda::check(cuda::launch_read(data.data(), kBytes, sink.as<std::uint32_t>(), stream), "read");
    timer.stop(stream);
    best = std::max(best, static_cast<double>(kBytes) / timer.seconds());
  }
  return best;
}

/// Tokens of a prompt: any will do, since weights are random.
std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary, std::int64_t sequence) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>((i * 7919 + sequence * 104729 + 1) % vocabulary));
  return tokens;
}

/// Prompts, then steps, of one batch.
class Run {
 public:
  Run(const DeviceDecoder& decoder, const ModelBenchOptions& options, std::int64_t batch)
      : decoder_(decoder), options_(options), batch_(batch) {
    for (std::int64_t i = 0; i < batch; ++i) {
      caches_.emplace_back(decoder.config(), options.cache, options.device);
      caches_.back().state().on_device->reserve(options.prompt + options.tokens, 0, decoder.stream());
      prompts_.push_back(some_tokens(options.prompt, decoder.config().vocabulary, i));
    }
  }

  /// Seconds of all prompts, some thousand rows at a time; the last pass's logits are what decoding starts from.
  double read_prompts() {
    constexpr std::int64_t kRows = 8192;
    const std::int64_t together = std::clamp<std::int64_t>(kRows / options_.prompt, 1, batch_);
    cuda::Timer timer;
    cuda::synchronize(decoder_.stream());
    timer.start(decoder_.stream());
    for (std::int64_t first = 0; first < batch_; first += together) {
      std::vector<Sequence> sequences;
      for (std::int64_t i = first; i < std::min(batch_, first + together); ++i) {
        caches_[static_cast<std::size_t>(i)].truncate(0);
        sequences.push_back({prompts_[static_cast<std::size_t>(i)], &caches_[static_cast<std::size_t>(i)]});
      }
      const Tensor logits = decoder_.forward_on_device(sequences, Logits::kLast, {});
      if (!logits_) logits_ = Tensor::empty(DType::kF32, {batch_, decoder_.config().vocabulary}, options_.device);
      cuda::copy_bytes(logits_->as<float>() + first * decoder_.config().vocabulary, logits.data(), logits.byte_size(), decoder_.stream());
    }
    timer.stop(decoder_.stream());
    return timer.seconds();
  }

  /// Seconds of one step, the mean over all but the first few.
  double make_tokens() {
    constexpr std::int64_t kWarm = 3;
    std::vector<KvCache*> caches;
    for (KvCache& cache : caches_) caches.push_back(&cache);
    DecodeLoop loop(decoder_, caches, *logits_, {}, options_.tokens);
    cuda::Timer timer;
    const std::int64_t warm = std::min(kWarm, options_.tokens - 2);
    for (std::int64_t i = 0; i < warm; ++i) loop.step();
    timer.start(decoder_.stream());
    for (std::int64_t i = warm; i + 1 < options_.tokens; ++i) loop.step();
    timer.stop(decoder_.stream());
    return timer.seconds() / static_cast<double>(options_.tokens - 1 - warm);
  }

  std::uint64_t cache_bytes() const {
    std::uint64_t bytes = 0;
    for (const KvCache& cache : caches_) bytes += cache.byte_size();
    const double length = static_cast<double>(options_.prompt) + static_cast<double>(options_.tokens) / 2.0;
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * length / static_cast<double>(options_.prompt + options_.tokens));
  }

 private:
  const DeviceDecoder& decoder_;
  const ModelBenchOptions& options_;
  std::int64_t batch_;
  std::vector<KvCache> caches_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::optional<Tensor> logits_;
};

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets{
      {"llama-2-7b", llama(4096, 11008, 32, 32, 32, 32000, 10000.0)},
      {"llama-3-8b", llama(4096, 14336, 32, 32, 8, 128256, 500000.0)},
      {"llama-3-70b", llama(8192, 28672, 80, 64, 8, 128256, 500000.0)},
      {"mixtral-8x7b", with_experts(llama(4096, 14336, 32, 32, 8, 32000, 1000000.0), "mixtral", {8, 2, 14336}, 128)},
      {"qwen3-30b-a3b", with_experts(llama(2048, 6144, 48, 32, 4, 151936, 1000000.0), "qwen3_moe", {128, 8, 768}, 128)},
  };
  return presets;
}

std::vector<ModelBenchResult> bench_model(const ModelConfig& config, const ModelBenchOptions& options,
                                          const std::function<void(const ModelBenchResult&)>& on_result) {
  if (options.device.is_cpu())
    throw Unsupported("bench --model measures CUDA devices; `narrow generate` gives the CPU's tokens per second");
  if (options.compute != Compute::kDefault && options.compute != Compute::kFp32)
    throw Unsupported("bench --model takes the inputs that a device is fastest with, of the scheme's 16 bits, or fp32 ones");
  if (options.prompt < 1 || options.tokens < 4) throw InvalidArgument("bench: a prompt has at least one token, and at least four are made");
  for (const std::int64_t batch : options.batches)
    if (batch < 1) throw InvalidArgument(fmt::format("bench: a batch of {} sequences; it must have at least one", batch));
  if (config.rope.kind == RopeConfig::Kind::kDynamic && options.prompt + options.tokens > config.max_positions)
    throw Unsupported("bench: beyond the model's own positions a dynamic RoPE changes with every token; ask for fewer tokens");
  cuda::require_device(options.device.index);
  const cuda::DeviceGuard guard(options.device.index);
  const cuda::OwnedStream stream(options.device.index);
  const double bandwidth = read_bandwidth(options.device, stream);
  const std::size_t before = cuda::device_memory(options.device.index).used;
  const DeviceDecoder decoder(model::random_weights(config, options.recipe, options.device, stream, options.compute == Compute::kFp32));
  std::vector<ModelBenchResult> results;
  for (const std::int64_t batch : options.batches) {
    Run run(decoder, options, batch);
    run.read_prompts();  // allocates, and warms up
    ModelBenchResult result{.batch = batch, .prompt = options.prompt, .tokens = options.tokens};
    result.prompt_seconds = run.read_prompts();
    result.prompt_tokens_per_second = static_cast<double>(batch * options.prompt) / result.prompt_seconds;
    result.step_seconds = run.make_tokens();
    result.tokens_per_second = static_cast<double>(batch) / result.step_seconds;
    result.weight_bytes = decoder.weights().bytes_per_step(batch);
    result.cache_bytes = run.cache_bytes();
    result.memory_bytes = cuda::device_memory(options.device.index).used - before;
    result.read_bandwidth = bandwidth;
    result.share = static_cast<double>(result.weight_bytes) / result.step_seconds / bandwidth;
    if (on_result) on_result(result);
    results.push_back(result);
  }
  return results;
}

}  // namespace narrow
