#pragma once
/// How fast a decoder of some architecture runs in some scheme on a CUDA device: random weights, made there.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/model.h"

namespace narrow {

/// An architecture by name: llama-2-7b, llama-3-8b, llama-3-70b, mixtral-8x7b, qwen3-30b-a3b.
struct ModelPreset {
  std::string_view name;
  ModelConfig config;
};
const std::vector<ModelPreset>& model_presets();

struct ModelBenchOptions {
  Recipe recipe{};
  std::vector<std::int64_t> batches{1};
  std::int64_t prompt = 128, tokens = 128;  ///< read and made by each sequence
  Scheme cache = KvCache::parse_scheme("fp16");
  Compute compute = Compute::kDefault;  ///< or kFp32
  Device device = Device::cuda(0);
};

/// One batch size.
struct ModelBenchResult {
  std::int64_t batch = 0, prompt = 0, tokens = 0;
  double prompt_seconds = 0.0;  ///< of all sequences' prompts
  double prompt_tokens_per_second = 0.0;
  double step_seconds = 0.0;       ///< the mean of all steps
  double tokens_per_second = 0.0;  ///< of all sequences together
  std::uint64_t weight_bytes = 0;  ///< that a step reads; of experts what it can be expected to meet
  std::uint64_t cache_bytes = 0;   ///< that a step reads, on average
  std::uint64_t memory_bytes = 0;  ///< that the process has of the device
  double read_bandwidth = 0.0;     ///< bytes per second that memory gave to a plain reader in this run
  double share = 0.0;              ///< weight bytes per second over that bandwidth
};

/// Throws Unsupported without a Hopper device, and for recipes that need calibration.
std::vector<ModelBenchResult> bench_model(const ModelConfig& config, const ModelBenchOptions& options,
                                          const std::function<void(const ModelBenchResult&)>& on_result = {});

}  // namespace narrow
