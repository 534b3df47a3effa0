/// narrow calibrate: what the inputs of a model's Linear layers look like over a text.

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "model_options.h"
#include "narrow/calibrate.h"
#include "narrow/error.h"
#include "plain_memory.h"
#include "report/numbers.h"
#include "report/table.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;

struct CalibrateOptions {
  std::string model, output, device = "cpu";
  TokenOptions tokens;
  std::vector<std::string> merge;
  bool second_moments = false;
};

CalibrationStatistics observe(Context& context, const Model& model, const TokenWindows& windows, bool second_moments) {
  const auto mode = context.err_is_terminal ? context.progress_mode() : report::ProgressMode::kNone;
  report::Progress progress(stderr, mode, context.err, "calibrate", static_cast<std::int64_t>(windows.size()),
                            report::ProgressUnit::kSteps);
  return collect_statistics(model, windows, second_moments, [&](std::size_t done) {
    throw_if_interrupted();
    progress.update("", "", done, windows.size());
  });
}

/// The median of the channels' largest magnitudes: what an outlier is measured against.
double median_channel(const InputStatistics& input) {
  std::vector<float> sorted = input.channel_max;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  return static_cast<double>(sorted[sorted.size() / 2]);
}

void run_calibrate(Context& context, const CalibrateOptions& options) {
  check_output_file(options.output);
  catch_interrupts();
  return_freed_memory();
  CalibrationStatistics statistics;
  if (!options.tokens.tokens.empty() || !options.tokens.text.empty()) {
    const LoadedTokens loaded = load_tokens(options.tokens, options.model);
    statistics =
        observe(context, open_model(options.model, {.device = parse_device(options.device)}), loaded.windows, options.second_moments);
  } else if (options.merge.empty()) {
    throw InvalidArgument("give a text to read (--tokens FILE or --text FILE), or files to join (--merge)");
  }
  for (const std::string& path : options.merge) statistics.merge(CalibrationStatistics::load(path));
  statistics.save(options.output);

  Json inputs = Json::array();
  report::Table table({{"input of", Align::kLeft, true},
                       {"min", Align::kRight},
                       {"max", Align::kRight},
                       {"99.9 %", Align::kRight},
                       {"max / median channel", Align::kRight}});
  const Scheme unit = Scheme::parse("int8:tensor");
  std::int64_t tokens = 0;
  for (const auto& [name, input] : statistics.inputs) {
    const double percentile = 127.0 * static_cast<double>(static_scale(input, unit, RangeMethod::parse("percentile")).scale);
    const double ratio = std::max(-input.minimum, input.maximum) / std::max(median_channel(input), 1e-30);
    tokens = std::max(tokens, input.tokens);
    inputs.push_back({{"module", name},
                      {"tokens", input.tokens},
                      {"channels", input.channel_max.size()},
                      {"min", input.minimum},
                      {"max", input.maximum},
                      {"percentile_99_9", percentile},
                      {"outlier_ratio", ratio}});
    table.add({name, report::value_text(input.minimum), report::value_text(input.maximum), report::value_text(percentile),
               fmt::format("{:.1f}", ratio)});
  }
  context.answer({{"model", options.model},
                  {"output", options.output},
                  {"tokens", tokens},
                  {"modules", statistics.shared.size()},
                  {"inputs", inputs}});
  context.print(table.render(context.out) + fmt::format("\n{}  {} inputs of {} modules over {} tokens\n", options.output,
                                                        statistics.inputs.size(), statistics.shared.size(), report::count_text(tokens)));
}

}  // namespace

void add_calibrate(CLI::App& app, Context& context) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      add_command(app, "calibrate", "Observe the inputs of a model's Linear layers over a text",
                  "  narrow calibrate model/ --tokens docs_tokens.safetensors -o stats.safetensors\n"
                  "  narrow quantize model/ small/ W8A8-static --stats stats.safetensors --range mse\n"
                  "  narrow calibrate model/ --merge a.safetensors b.safetensors -o both.safetensors\n\n"
                  "Histograms, extremes and channel maxima take the same memory for any length of text, and join exactly.\n");
  command->add_option("MODEL", options->model, "A Hugging Face directory")->type_name("")->required();
  command->add_option("-o,--output", options->output, "The safetensors file to write")->option_text("FILE")->required();
  add_token_options(*command, options->tokens, "calib");
  add_device_option(*command, options->device);
  command->add_flag("--second-moments", options->second_moments, "Also X^T X of every input, for GPTQ; slower, and large");
  command->add_option("--merge", options->merge, "Add the statistics of other runs")->option_text("FILE ...");
  command->callback([&context, options] { context.run = [&context, options] { run_calibrate(context, *options); }; });
}

}  // namespace narrow::command
