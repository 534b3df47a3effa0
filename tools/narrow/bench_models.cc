/// narrow bench --model: how many tokens per second a model of some architecture makes in some scheme.

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench_models.h"
#include "narrow/error.h"
#include "report/numbers.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;

ModelConfig config_of(const std::string& model) {
  std::string names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == model) return preset.config;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  if (!model.ends_with(".json"))
    throw InvalidArgument(fmt::format("--model is '{}'; it must be a config.json, or one of {}", model, names));
  return read_model_config(std::filesystem::path(model));
}

Json result_object(const std::string& scheme, const ModelBenchResult& r) {
  return {{"scheme", scheme},
          {"batch", r.batch},
          {"prompt", r.prompt},
          {"generate", r.tokens},
          {"prompt_tokens_per_second", r.prompt_tokens_per_second},
          {"tokens_per_second", r.tokens_per_second},
          {"milliseconds_per_step", 1e3 * r.step_seconds},
          {"weight_bytes", r.weight_bytes},
          {"cache_bytes", r.cache_bytes},
          {"memory_bytes", r.memory_bytes},
          {"read_bandwidth", r.read_bandwidth},
          {"bandwidth_share", r.share}};
}

}  // namespace

void bench_models(Context& context, ModelBenchCommand& options) {
  const ModelConfig config = config_of(options.model);
  options.how.device = parse_device(options.device);
  if (options.compute == "fp32") options.how.compute = Compute::kFp32;
  options.how.cache = KvCache::parse_scheme(options.cache);
  if (options.schemes.empty()) options.schemes = {"fp16"};
  Json results = Json::array();
  report::Table table({{"scheme"},
                       {"batch", Align::kRight},
                       {"prompt tokens/s", Align::kRight},
                       {"tokens/s", Align::kRight},
                       {"ms/step", Align::kRight},
                       {"weights", Align::kRight},
                       {"memory", Align::kRight},
                       {"of read bandwidth", Align::kRight}});
  std::vector<std::pair<std::string, ModelBenchResult>> measured;
  double bandwidth = 0.0;  // the highest of the run: where memory has come apart a reader may get less than the steps do
  catch_interrupts();
  for (const std::string& scheme : options.schemes) {
    options.how.recipe = Recipe::of(scheme);
    apply_activation_options(options.activations, options.how.recipe.activations);
    bench_model(config, options.how, [&](const ModelBenchResult& r) {
      throw_if_interrupted();
      bandwidth = std::max(bandwidth, r.read_bandwidth);
      measured.emplace_back(scheme, r);
    });
  }
  for (auto& [scheme, r] : measured) {
    r.share *= r.read_bandwidth / bandwidth;
    r.read_bandwidth = bandwidth;
    results.push_back(result_object(scheme, r));
    table.add({scheme, fmt::format("{}", r.batch), fmt::format("{:.0f}", r.prompt_tokens_per_second),
               fmt::format("{:.1f}", r.tokens_per_second), fmt::format("{:.3f}", 1e3 * r.step_seconds), report::bytes_text(r.weight_bytes),
               report::bytes_text(r.memory_bytes), fmt::format("{:.1f} %", 100.0 * r.share)});
  }
  context.answer(Json{{"model", options.model},
                      {"device", options.device},
                      {"compute", options.compute},
                      {"kv_cache", options.cache},
                      {"read_bandwidth", bandwidth},
                      {"results", results}});
  context.print(table.render(context.out));
  context.print(fmt::format("\nPrompts of {} tokens, {} made; a plain reader gets {:.2f} TB/s from memory here.\n", options.how.prompt,
                            options.how.tokens, 1e-12 * bandwidth));
}

}  // namespace narrow::command
