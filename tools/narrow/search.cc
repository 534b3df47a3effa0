/// narrow search: the best scheme for every layer within a budget, as a recipe.

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "io/atomic_file.h"
#include "model_options.h"
#include "narrow/error.h"
#include "narrow/search.h"
#include "recipe_options.h"
#include "report/numbers.h"
#include "report/table.h"
#include "search_page.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;

struct SearchCommandOptions {
  std::string model, output, page, size, statistics, method = "rtn";
  double bits = 0.0, divergence = 0.0;
  std::vector<std::string> menu, ignore;
  std::size_t probe_windows = 8;
  TokenOptions tokens;
};

/// 6GiB, 500MB, 12345678.
std::uint64_t parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"GB", 1e9},
                             {"MB", 1e6},     {"kB", 1e3},     {"KB", 1e3},     {"", 1.0}};
  std::size_t end = 0;
  double number = 0.0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = std::string::npos;
  }
  if (end != std::string::npos && number > 0.0 && std::isfinite(number))
    for (const Unit& unit : kUnits)
      if (text.substr(end) == unit.name) return static_cast<std::uint64_t>(number * unit.bytes);
  throw InvalidArgument(fmt::format("--size '{}' is no size; write for example 6GiB, 500MB or 12345678", text));
}

Json result_object(const SearchCommandOptions& options, const SearchResult& result) {
  Json menu = Json::array(), modules = Json::array(), curve = Json::array();
  for (const Scheme& scheme : result.menu) menu.push_back(scheme.to_string());
  for (const SearchedModule& module : result.modules)
    modules.push_back({{"module", module.module},
                       {"scheme", result.menu[module.choice].to_string()},
                       {"divergence", module.divergence},
                       {"losses", module.losses},
                       {"predicted", module.costs},
                       {"bytes", module.bytes}});
  for (const CurvePoint& point : result.curve) curve.push_back({{"bits_per_weight", point.bits}, {"divergence", point.divergence}});
  return {{"model", options.model},
          {"recipe", options.output.empty() ? Json(nullptr) : Json(options.output)},
          {"bits_per_weight", result.bits},
          {"bytes", result.bytes},
          {"divergence", result.divergence},
          {"menu", menu},
          {"modules", modules},
          {"curve", curve}};
}

void run_search(Context& context, const CLI::App& command, const SearchCommandOptions& options) {
  SearchOptions how;
  how.method = Method::parse(options.method);
  for (const std::string& scheme : options.menu) how.menu.push_back(Scheme::parse(scheme));
  if (!options.ignore.empty()) how.recipe.ignore = patterns_to_ignore(options.ignore);
  if (command.count("--bits") > 0) how.bits = options.bits;
  if (command.count("--max-kl") > 0) how.divergence = options.divergence;
  if (!options.size.empty()) how.bytes = parse_size(options.size);
  if (how.bits.has_value() + how.bytes.has_value() + how.divergence.has_value() != 1)
    throw InvalidArgument("search needs one budget: --bits BITS, --size SIZE or --max-kl NATS");
  for (const std::string& file : {options.output, options.page})
    if (!file.empty()) check_output_file(file);
  how.probe_windows = options.probe_windows;
  const TokenWindows windows = load_tokens(options.tokens, options.model).windows;
  std::optional<CalibrationStatistics> statistics;
  if (!options.statistics.empty()) statistics = CalibrationStatistics::load(options.statistics);
  how.statistics = statistics ? &*statistics : nullptr;
  catch_interrupts();
  SearchResult result;
  {
    report::Progress progress(stderr, context.progress_mode(), context.err, "search", 0, report::ProgressUnit::kSteps);
    how.progress = [&](const std::string& module, std::size_t done, std::size_t modules) {
      throw_if_interrupted();
      progress.update(module, done > modules / 2 ? "divergence" : "losses", done, modules);
    };
    result = search_schemes(options.model, windows, how);
  }
  if (!options.output.empty()) io::write_text(options.output, recipe_yaml(result.recipe));
  if (!options.page.empty()) io::write_text(options.page, search_page(options.model, result));
  context.answer(result_object(options, result));
  report::Table table(
      {{"module", Align::kLeft, true}, {"scheme"}, {"bits", Align::kRight}, {"KL alone", Align::kRight}, {"predicted KL", Align::kRight}});
  for (const SearchedModule& module : result.modules)
    table.add({module.module,
               {result.menu[module.choice].to_string(), Paint::kAccent},
               fmt::format("{:.2f}", 8.0 * static_cast<double>(module.bytes[module.choice]) / static_cast<double>(module.weights)),
               report::value_text(module.divergence),
               report::value_text(module.costs[module.choice])});
  context.print(table.render(context.out) + "\n");
  report::Table curve({{"bits per weight", Align::kRight}, {"best predicted KL", Align::kRight}});
  for (const CurvePoint& point : result.curve) curve.add({fmt::format("{:.3f}", point.bits), report::value_text(point.divergence)});
  context.print(curve.render(context.out) + "\n");
  context.print(fmt::format("{:.4f} bits per weight, {} bytes, predicted KL {}\n", result.bits,
                            report::count_text(static_cast<std::int64_t>(result.bytes)), report::value_text(result.divergence)));
  if (!options.output.empty())
    context.print(
        fmt::format("{}  quantize with --recipe {}\n", report::painted(context.out, Paint::kGood, options.output), options.output));
}

}  // namespace

void add_search(CLI::App& app, Context& context) {
  auto options = std::make_shared<SearchCommandOptions>();
  CLI::App* command = add_command(app, "search", "The best scheme for every layer within a budget, as a recipe for quantize",
                                  "  narrow search model/ --bits 4.25 --tokens docs_tokens.safetensors -o mix.yaml\n"
                                  "  narrow quantize model/ small/ --recipe mix.yaml\n\n"
                                  "Each layer's output error is measured for every scheme of the menu, and the KL divergence of the\n"
                                  "model with that layer alone quantized; the assignment is the best one for their sum.\n");
  command->add_option("MODEL", options->model, "A plain Hugging Face directory")->type_name("")->required();
  command->add_option("--bits", options->bits, "The budget: bits per quantized weight, scales included")->option_text("BITS");
  command->add_option("--size", options->size, "The budget: the size of the tensor files, 6GiB or 500MB")->option_text("SIZE");
  command->add_option("--max-kl", options->divergence, "The budget: the largest predicted KL divergence; the smallest model is found")
      ->option_text("NATS");
  command->add_option("-o,--output", options->output, "Write the recipe here")->option_text("FILE");
  command->add_option("--report", options->page, "Write a page here: every layer in every scheme, and the curve of budgets")
      ->option_text("FILE");
  command->add_option("--menu", options->menu, "The schemes to choose from (default: ten of 3 to 8 bits)")->option_text("SCHEME ...");
  command->add_option("--method", options->method, "How the weights will be quantized: rtn (default), gptq+clip, ..")
      ->option_text("METHOD");
  command->add_option("--ignore", options->ignore, "Leave these alone (default: lm_head); none: nothing")->option_text("PATTERN ...");
  command->add_option("--stats", options->statistics, "What narrow calibrate --second-moments wrote, instead of reading all windows")
      ->option_text("FILE");
  command->add_option("--probe-windows", options->probe_windows, "Windows read for each layer's divergence (default 8)")->option_text("N");
  add_token_options(*command, options->tokens, "calib");
  command->callback(
      [&context, command, options] { context.run = [&context, command, options] { run_search(context, *command, *options); }; });
}

}  // namespace narrow::command
