/// narrow bench: how many tokens per second a model of some architecture makes in some scheme.

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "model_options.h"
#include "narrow/error.h"
#include "narrow/model_bench.h"
#include "report/numbers.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;

struct BenchOptions {
  std::string model, device = "cuda", cache = "fp16";
  std::vector<std::string> schemes;
  ActivationOptions activations;
  ModelBenchOptions how;
};

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

void run_bench(Context& context, BenchOptions& options) {
  if (options.model.empty()) throw InvalidArgument("bench: say what to measure: --model CONFIG.json, or a preset");
  const ModelConfig config = config_of(options.model);
  options.how.device = parse_device(options.device);
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
  double bandwidth = 0.0;
  catch_interrupts();
  for (const std::string& scheme : options.schemes) {
    options.how.recipe = Recipe::of(scheme);
    apply_activation_options(options.activations, options.how.recipe.activations);
    bench_model(config, options.how, [&](const ModelBenchResult& r) {
      throw_if_interrupted();
      bandwidth = r.read_bandwidth;
      results.push_back(result_object(scheme, r));
      table.add({scheme, fmt::format("{}", r.batch), fmt::format("{:.0f}", r.prompt_tokens_per_second), fmt::format("{:.1f}", r.tokens_per_second),
                 fmt::format("{:.3f}", 1e3 * r.step_seconds), report::bytes_text(r.weight_bytes), report::bytes_text(r.memory_bytes),
                 fmt::format("{:.1f} %", 100.0 * r.share)});
    });
  }
  context.answer(Json{{"model", options.model}, {"device", options.device}, {"kv_cache", options.cache}, {"read_bandwidth", bandwidth}, {"results", results}});
  context.print(table.render(context.out));
  context.print(fmt::format("\nPrompts of {} tokens, {} made; a plain reader gets {:.2f} TB/s from memory here.\n", options.how.prompt, options.how.tokens,
                            1e-12 * bandwidth));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = add_command(app, "bench", "Tokens per second of an architecture in a scheme, with random weights on a GPU",
                                  "  narrow bench --model llama-2-7b --scheme fp16 int4:block128 --batch 1 8 32\n"
                                  "  narrow bench --model config.json --scheme FP8_DYNAMIC --prompt 2048 --generate 16 --json\n\n"
                                  "Weights are random, made on the device; nothing is read but the config.\n");
  command->add_option("--model", options->model, "A config.json, or llama-2-7b, llama-3-8b, llama-3-70b")->option_text("CONFIG");
  command->add_option("--scheme", options->schemes, "Schemes or presets of the decoder's weights (default: fp16)")->option_text("SCHEME ...");
  add_activation_options(*command, options->activations);
  command->add_option("--batch", options->how.batches, "Sequences at a time (default: 1)")->option_text("B ...");
  command->add_option("--prompt", options->how.prompt, "Tokens that each sequence reads (default: 128)")->option_text("P");
  command->add_option("--generate", options->how.tokens, "Tokens that each sequence makes (default: 128)")->option_text("G");
  command->add_option("--kv-cache", options->cache, "Keys and values in fp16 (default), fp32, bf16, fp8_e4m3:row, int8:row")->option_text("SCHEME");
  command->add_option("--device", options->device, "The GPU: cuda (default), cuda:1, ..")->option_text("DEVICE");
  command->callback([&context, options] { context.run = [&context, options] { run_bench(context, *options); }; });
}

}  // namespace narrow::command
