/// narrow bench: tokens per second of a model on a GPU, or this machine's kernels, timed, as a page.

#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "bench_models.h"
#include "bench_report.h"
#include "io/atomic_file.h"
#include "narrow/error.h"
#include "report/numbers.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

void run_bench_report(Context& context, const std::string& path, double seconds_each) {
  check_output_file(path);
  catch_interrupts();
  const bool shows = context.err_is_terminal && !context.quiet;
  const BenchReport report = measure_kernels(seconds_each, [&](std::string_view name) {
    throw_if_interrupted();
    if (shows) std::fputs(fmt::format("\rtiming {:<40}", name).c_str(), stderr);
  });
  if (shows) std::fputs(fmt::format("\r{:<47}\r", "").c_str(), stderr);
  io::write_text(path, bench_page(report));
  context.answer(bench_object(report));
  context.print(fmt::format("{} timings in {}: {}\n", report.timings.size(), report::duration_text(report.seconds), path));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  struct Options {
    ModelBenchCommand model;
    std::string report;
    double seconds = 0.1;
  };
  auto options = std::make_shared<Options>();
  ModelBenchCommand& model = options->model;
  CLI::App* command = add_command(app, "bench", "Time a model's tokens on a GPU, or this machine's kernels beside its limits",
                                  "  narrow bench --model llama-2-7b --scheme fp16 int4:block128 --batch 1 8 32\n"
                                  "  narrow bench --model config.json --scheme FP8_DYNAMIC --prompt 2048 --generate 16 --json\n"
                                  "  narrow bench --report bench.html\n\n"
                                  "Weights of a model are random, made on the device; nothing is read but the config.\n");
  command->add_option("--model", model.model, "A config.json, or llama-2-7b, llama-3-8b, llama-3-70b, mixtral-8x7b, qwen3-30b-a3b")
      ->option_text("CONFIG");
  command->add_option("--scheme", model.schemes, "Schemes or presets of the decoder's weights (default: fp16)")->option_text("SCHEME ...");
  add_activation_options(*command, model.activations);
  command->add_option("--batch", model.how.batches, "Sequences at a time (default: 1)")->option_text("B ...");
  command->add_option("--prompt", model.how.prompt, "Tokens that each sequence reads (default: 128)")->option_text("P");
  command->add_option("--generate", model.how.tokens, "Tokens that each sequence makes (default: 128)")->option_text("G");
  command->add_option("--compute", model.compute, "Inputs that are not rounded: fp16 (default; bf16 of bf16 weights) or fp32")
      ->option_text("TYPE")
      ->check(CLI::IsMember({"fp16", "fp32"}).description(""));
  command->add_option("--kv-cache", model.cache, "Keys and values in fp16 (default), fp32, bf16, fp8_e4m3:row, int8:row")
      ->option_text("SCHEME");
  command->add_option("--device", model.device, "The GPU: cuda (default), cuda:1, ..")->option_text("DEVICE");
  command->add_option("--report", options->report, "Write one HTML page of the kernels here, to be attached to an issue")
      ->option_text("FILE");
  command->add_option("--seconds", options->seconds, "--report: repeat each kernel for this long (default 0.1)")
      ->option_text("N")
      ->check(number_from(0.0, 60.0));
  command->callback([&context, options] {
    context.run = [&context, options] {
      if (options->model.model.empty() == options->report.empty())
        throw InvalidArgument("bench: say what to time: either --model CONFIG.json (or a preset), or --report FILE");
      if (options->report.empty()) return bench_models(context, options->model);
      run_bench_report(context, options->report, options->seconds);
    };
  });
}

}  // namespace narrow::command
