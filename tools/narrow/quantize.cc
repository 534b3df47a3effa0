/// narrow quantize: a checkpoint to a smaller one.

#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "cluster.h"
#include "commands.h"
#include "interop_report.h"
#include "model_options.h"
#include "narrow/error.h"
#include "narrow/interop.h"
#include "narrow/methods.h"
#include "recipe_options.h"
#include "report/numbers.h"
#include "report/table.h"
#include "special_report.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;

constexpr std::size_t kWorstShown = 5;

struct QuantizeCommandOptions {
  std::string input, output, form, journal, spill, method = "rtn", device = "cpu";
  RecipeOptions recipe;
  TokenOptions tokens;
  bool act_order = false, compat = false;
  ClusterOptions cluster;
  double damping = 0.01, strength = 0.5;
  int passes = Method{}.passes;
};

/// The method; says in the command's words what it lacks.
Method make_method(const CLI::App& command, const QuantizeCommandOptions& options) {
  Method method = Method::parse(options.method);
  method.act_order = options.act_order;
  method.damping = options.damping;
  method.passes = options.passes;
  if (command.count("--strength") > 0) method.strength = options.strength;
  const bool has_text = !options.tokens.tokens.empty() || !options.tokens.text.empty();
  const bool has_statistics = !options.recipe.activations.statistics.empty();
  if (method.needs_calibration() && !has_text && !has_statistics)
    throw InvalidArgument(
        fmt::format("--method {} needs a text to calibrate with: {}", options.method,
                    method.correct || method.tune ? "--tokens FILE or --text FILE" : "--tokens FILE, --text FILE or --stats FILE"));
  if (method.is_rounding() && has_text)
    throw InvalidArgument("--tokens and --text are what a method is calibrated with; add --method gptq or another");
  if (!method.chooses_codes() && !options.journal.empty())
    throw InvalidArgument(fmt::format("--journal keeps codes that a method chose; --method {} chooses none", options.method));
  if (!method.gptq && method.act_order) throw InvalidArgument(fmt::format("--act-order is of GPTQ; --method is {}", options.method));
  if (!method.needs_hessian() && command.count("--damping") > 0)
    throw InvalidArgument(fmt::format("--damping is of gptq, refine and correct; --method is {}", options.method));
  if (!options.spill.empty() && (!method.fits_layers() || !has_text))
    throw InvalidArgument("--spill keeps what layers see of a text; give a method such as gptq, and --tokens or --text");
  if (!parse_device(options.device).is_cpu() && !(method.gptq || method.clip || method.refine))
    throw InvalidArgument(fmt::format("--device is where gptq, clip and refine compute; --method {} runs on the CPU", options.method));
  if (!method.tune && command.count("--passes") > 0)
    throw InvalidArgument(fmt::format("--passes is of tune; --method is {}", options.method));
  return method;
}

/// Quantized tensors, the one with the lowest SQNR first.
std::vector<TensorResult> worst_first(std::vector<TensorResult> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorResult& a, const TensorResult& b) { return a.error.sqnr_db < b.error.sqnr_db; });
  return tensors;
}

double ratio_of(const Plan& plan) {
  return plan.bytes_after > 0 ? static_cast<double>(plan.bytes_before) / static_cast<double>(plan.bytes_after) : 1.0;
}

Json module_objects(const MethodReport& report) {
  Json modules = Json::array();
  for (const FittedModule& module : report.modules)
    modules.push_back({{"module", module.module},
                       {"scheme", module.scheme.to_string()},
                       {"loss_before", module.loss_before},
                       {"loss_after", module.loss_after},
                       {"damping", module.damping},
                       {"dead_columns", module.dead_columns},
                       {"fallback", module.fallback.empty() ? Json(nullptr) : Json(module.fallback)}});
  return modules;
}

/// What the step tune gained; null without it.
Json tuned_object(const MethodReport& report) {
  if (!report.tuned) return nullptr;
  return {{"divergence_before", report.tuned->divergence_before},
          {"divergence_after", report.tuned->divergence_after},
          {"best_pass", report.tuned->best_pass}};
}

/// What the recipe will do: refused where that is nothing or nobody could run it, with a warning for patterns that do nothing.
Plan checked_plan(const Context& context, const QuantizeCommandOptions& options, const Recipe& recipe) {
  const Plan plan = plan_quantize(open_checkpoint(options.input), recipe, options.output);
  check_quantizes(plan);
  if (options.tokens.tokens.empty() && options.tokens.text.empty()) check_calibrated(plan, recipe);  // a text gives scales
  for (const std::string& idle : idle_patterns(plan, recipe)) context.warn(idle);
  return plan;
}

Json result_object(const QuantizeCommandOptions& options, const Recipe& recipe, const MethodReport& method) {
  const QuantizeReport& report = method.files;
  const std::vector<TensorResult> worst = worst_first(report.tensors);
  Json tensors = Json::array();
  for (const TensorResult& tensor : report.tensors) {
    Json object{{"name", tensor.name}, {"scheme", tensor.scheme.to_string()}};
    object.update(report::error_object(tensor.error));
    object["clipped"] = tensor.clipped;
    object.update(special_object(tensor.source));
    tensors.push_back(std::move(object));
  }
  return {{"input", options.input},
          {"output", options.output},
          {"scheme", recipe.scheme.to_string()},
          {"method", options.method},
          {"size", report.plan.file_bytes},
          {"bytes_before", report.plan.bytes_before},
          {"bytes_after", report.plan.bytes_after},
          {"ratio", ratio_of(report.plan)},
          {"bits_per_weight", report.plan.bits_per_weight},
          {"sqnr_db", report::number(report.sqnr_db)},
          {"worst_tensor", worst.empty() ? Json(nullptr) : Json(worst.front().name)},
          {"worst_sqnr_db", worst.empty() ? Json(nullptr) : report::number(worst.front().error.sqnr_db)},
          {"seconds", report.seconds},
          {"fit_seconds", method.fit_seconds},
          {"device", options.device},
          {"factored_by", method.factored_by.empty() ? Json(nullptr) : Json(method.factored_by)},
          {"fallbacks", method.fallbacks},
          {"tuned", tuned_object(method)},
          {"on_nonfinite", std::string(name_of(recipe.on_nonfinite))},
          {"kept", kept_objects(report.kept)},
          {"idle", idle_patterns(report.plan, recipe)},
          {"modules", module_objects(method)},
          {"tensors", tensors}};
}

/// What the method did to every module: the output's relative squared error over the calibration text.
void print_modules(Context& context, const QuantizeCommandOptions& options, const MethodReport& report) {
  if (report.modules.empty()) return;
  report::Table table({{"module", Align::kLeft, true},
                       {"loss of rounding", Align::kRight},
                       {options.method, Align::kRight},
                       {"ratio", Align::kRight},
                       {""}});
  for (const FittedModule& module : report.modules)
    table.add({module.module, report::value_text(module.loss_before), report::value_text(module.loss_after),
               module.loss_before > 0.0 ? fmt::format("{:.3f}", module.loss_after / module.loss_before) : "",
               module.fallback.empty() ? "" : "rounded: " + module.fallback});
  context.print(table.render(context.out) + "\n");
  context.print(fmt::format("{} modules by {} in {}, {} rounded instead\n\n", report.modules.size(), options.method,
                            report::duration_text(report.fit_seconds), report.fallbacks));
  if (!report.factored_by.empty()) context.print(fmt::format("on {}, Hessians factored by {}\n\n", options.device, report.factored_by));
  if (report.tuned)
    context.print(fmt::format("tune: divergence {} -> {} nats, from pass {}\n\n", report::value_text(report.tuned->divergence_before),
                              report::value_text(report.tuned->divergence_after), report.tuned->best_pass));
}

void print_summary(Context& context, const QuantizeCommandOptions& options, const Recipe& recipe, const QuantizeReport& report) {
  const std::vector<TensorResult> worst = worst_first(report.tensors);
  report::Table table({{"worst tensors", Align::kLeft, true},
                       {"scheme"},
                       {"SQNR", Align::kRight},
                       {"max error", Align::kRight},
                       {"RMS error", Align::kRight},
                       {"clipped", Align::kRight}});
  for (std::size_t i = 0; i < std::min(kWorstShown, worst.size()); ++i)
    table.add({worst[i].name, worst[i].scheme.to_string(), report::decibel_text(worst[i].error.sqnr_db),
               report::value_text(worst[i].error.max_absolute), report::value_text(worst[i].error.rms),
               report::percent_text(worst[i].clipped)});
  if (table.row_count() > 0) context.print(table.render(context.out) + "\n");
  for (const TensorResult& tensor : report.tensors) print_special(context, tensor.name, tensor.source);
  for (const KeptTensor& tensor : report.kept) print_kept(context, tensor);
  context.print(fmt::format("{}  {} of {} tensors to {} at {:.3f} bits per weight, SQNR {}\n",
                            report::painted(context.out, Paint::kGood, options.output), report.tensors.size(), report.plan.tensors.size(),
                            recipe.scheme.to_string(), report.plan.bits_per_weight, report::decibel_text(report.sqnr_db)));
  context.print(fmt::format("{} -> {} ({:.2f} times smaller), written and verified in {}\n", report::bytes_text(report.plan.bytes_before),
                            report::bytes_text(report.plan.bytes_after), ratio_of(report.plan), report::duration_text(report.seconds)));
}

void run_export(Context& context, const QuantizeCommandOptions& options, const Recipe& recipe) {
  catch_interrupts();
  if (options.compat && gguf_type(options.form))
    throw InvalidArgument("--compat is of ct, gptq and awq; plain weights become ggml's blocks by ggml's rules in narrow convert");
  if (const std::optional<std::string> type = gguf_type(options.form)) {
    report::Progress progress(stderr, context.progress_mode(), context.err, "export", 0);
    const GgufReport report = export_gguf(options.input, options.output, recipe, *type, [&](const TensorProgress& tensor) {
      throw_if_interrupted();
      progress.update(tensor.name, tensor.stage == Stage::kVerified ? "verified" : "written", tensor.bytes_done, tensor.bytes_total);
    });
    return print_gguf_report(context, options.input, options.output, options.form, report);
  }
  const Ecosystem target = parse_ecosystem(options.form);
  InteropReport report;
  {
    report::Progress progress(stderr, context.progress_mode(), context.err, "export", 0);
    report = export_checkpoint(
        options.input, options.output, recipe, target,
        [&](const TensorProgress& tensor) {
          throw_if_interrupted();
          progress.update(tensor.name, tensor.stage == Stage::kVerified ? "verified" : "written", tensor.bytes_done, tensor.bytes_total);
        },
        options.compat ? ScaleRules::kEcosystem : ScaleRules::kNarrow);
  }
  print_interop_report(context, options.input, options.output, report, Proof::kWorst);
}

TokenWindows calibration_windows(const QuantizeCommandOptions& options) {
  if (options.tokens.tokens.empty() && options.tokens.text.empty()) return {};
  return load_tokens(options.tokens, options.input).windows;
}

/// What a cluster does not take is said before anything starts.
void run_on_cluster(const Context& context, const QuantizeCommandOptions& options, const Recipe& recipe, const Method& method) {
  check_cluster_address(options.cluster.address);
  if (!options.form.empty())
    throw InvalidArgument("--export is of one process; quantize on the cluster first, then narrow convert the result");
  if (!options.spill.empty()) throw InvalidArgument("--spill is of one process; on a cluster each worker holds its share of the text");
  if (!parse_device(options.device).is_cpu()) throw InvalidArgument("--device is of one process; the workers of a cluster compute on CPUs");
  if (!options.journal.empty())
    throw InvalidArgument("--journal is of one process; on a cluster the workers keep one beside OUT while they run");
  const TokenWindows windows = calibration_windows(options);
  if (method.needs_calibration() && windows.empty())
    throw InvalidArgument(fmt::format("--method {} on a cluster reads a text: --tokens FILE or --text FILE", options.method));
  quantize_on_cluster(context, options.cluster, options.input, options.output, recipe, method, windows);
}

void run_quantize(Context& context, const CLI::App& command, const QuantizeCommandOptions& options) {
  const Method method = make_method(command, options);
  const Recipe recipe = make_recipe(command, options.recipe);
  if (options.compat && options.form.empty())
    throw InvalidArgument("--compat is the rule of another runtime's tools; add --export ct, gptq or awq");
  if (!options.cluster.address.empty()) return run_on_cluster(context, options, recipe, method);
  if (!options.form.empty()) {
    if (!method.is_rounding())
      throw InvalidArgument("--export writes rounded weights; quantize by the method first, then narrow convert the result");
    checked_plan(context, options, recipe);
    return run_export(context, options, recipe);
  }
  const std::filesystem::path output = options.output;
  std::map<std::string, std::string> fates;
  {
    const Plan plan = checked_plan(context, options, recipe);
    if (plan.file_bytes > plan.free_disk)
      throw IoError(fmt::format("'{}' needs {} of disk, but {} are free; choose another place or a smaller scheme", options.output,
                                report::bytes_text(plan.file_bytes), report::bytes_text(plan.free_disk)));
    for (const PlannedTensor& tensor : plan.tensors)
      fates[tensor.name] = tensor.fate == Fate::kQuantize ? tensor.scheme.to_string() : "as it is";
  }
  const TokenWindows windows = calibration_windows(options);
  std::optional<CalibrationStatistics> statistics;
  if (windows.empty() && !method.is_rounding() && !options.recipe.activations.statistics.empty())
    statistics = CalibrationStatistics::load(options.recipe.activations.statistics);
  const Calibration calibration{windows, statistics ? &*statistics : nullptr, RangeMethod::parse(options.recipe.activations.range)};
  catch_interrupts();
  MethodReport report;
  {
    report::Progress fitting(stderr, context.progress_mode(), context.err, options.method, static_cast<std::int64_t>(fates.size()),
                             report::ProgressUnit::kSteps);
    constexpr std::int64_t kTuneParts = 1000;
    std::optional<report::Progress> progress, tuning;
    const auto tuned = [&](const TuneProgress& at) {
      throw_if_interrupted();
      if (!tuning) tuning.emplace(stderr, context.progress_mode(), context.err, "tune", kTuneParts, report::ProgressUnit::kSteps);
      tuning->update(fmt::format("pass {}", at.pass), fmt::format("divergence {}", report::value_text(at.divergence)),
                     static_cast<std::uint64_t>(at.share * kTuneParts), kTuneParts);
    };
    const auto fitted = [&](const FittedModule& module, std::size_t done, std::size_t modules) {
      throw_if_interrupted();
      fitting.update(module.module,
                     fmt::format("loss {} -> {}", report::value_text(module.loss_before), report::value_text(module.loss_after)), done,
                     modules);
    };
    report = quantize_checkpoint(options.input, output, recipe, method, calibration,
                                 {options.journal, fitted,
                                  [&](const TensorProgress& tensor) {
                                    throw_if_interrupted();
                                    if (!progress)
                                      progress.emplace(stderr, context.progress_mode(), context.err, "quantize",
                                                       static_cast<std::int64_t>(2 * fates.size()));
                                    const bool verified = tensor.stage == Stage::kVerified;
                                    std::string detail = verified ? "verified" : fates[tensor.name];
                                    if (verified && tensor.quantized)
                                      detail += fmt::format("  {}", report::decibel_text(tensor.error.sqnr_db));
                                    progress->update(tensor.name, detail, tensor.bytes_done, tensor.bytes_total);
                                  },
                                  tuned, options.spill, parse_device(options.device)});
  }
  context.answer(result_object(options, recipe, report));
  print_modules(context, options, report);
  print_summary(context, options, recipe, report.files);
}

}  // namespace

void add_quantize(CLI::App& app, Context& context) {
  auto options = std::make_shared<QuantizeCommandOptions>();
  CLI::App* command =
      add_command(app, "quantize", "Quantize a checkpoint: the weights of Linear layers become SCHEME",
                  "  narrow quantize model/ small/ int8:row\n"
                  "  narrow quantize model/ small/ int4:block128 --ignore lm_head --rule 're:.*down_proj=int8:row'\n"
                  "  narrow quantize model/ small/ --recipe recipe.yaml\n"
                  "  narrow quantize model/ small/ int4:block128 --method gptq+clip --tokens docs_tokens.safetensors\n"
                  "  narrow quantize model/ small/ int4:block128 --method gptq --tokens docs_tokens.safetensors --device cuda\n"
                  "  narrow quantize model/ small/ int4:block128 --cluster local:4\n\n"
                  "lm_head, embeddings, norms and biases stay as they are. The result is written beside OUT and\n"
                  "takes its name when it is complete and verified; an error or Ctrl-C leaves nothing behind.\n");
  command->add_option("IN", options->input, "A safetensors file or a directory")->type_name("")->required();
  command->add_option("OUT", options->output, "The directory to write; it must not exist, or be empty")->type_name("")->required();
  add_recipe_options(*command, context, options->recipe);
  command
      ->add_option("--export", options->form, "Write the form that another runtime loads: ct, gptq, awq, fp8-block, modelopt, gguf[:TYPE]")
      ->type_name("FORM");
  command->add_flag("--compat", options->compat,
                    "With --export: scales and codes by the rule of that runtime's own tools, not by narrow's");
  command
      ->add_option(
          "--method", options->method,
          "How weights become codes: rtn (default), or steps joined by +:\nrotate, smoothquant, awq, correct, gptq, clip, refine, tune")
      ->option_text("METHOD");
  command
      ->add_option("--device", options->device,
                   "Where gptq, clip and refine read the text and fit weights: cpu (default), cuda, cuda:1, ..")
      ->option_text("DEVICE");
  command->add_flag("--act-order", options->act_order, "GPTQ: columns with the largest inputs first");
  command->add_option("--damping", options->damping, "Share of the Hessian's mean diagonal added to it (default 0.01)")
      ->option_text("SHARE");
  command->add_option("--spill", options->spill, "Keep the layers' inputs for the whole text in files here, not in memory")
      ->option_text("DIR");
  command->add_option("--passes", options->passes, "Tune: how often it reads the text (default 3)")
      ->option_text("N")
      ->check(number_from(1, 1000));
  command->add_option("--journal", options->journal, "Keep here what the method has done; a killed run started again goes on from it")
      ->option_text("DIR");
  command->add_option("--strength", options->strength, "SmoothQuant: how much of the outliers moves, 0 .. 1 (default: searched)")
      ->option_text("SHARE");
  add_token_options(*command, options->tokens, "calib");
  CLI::Option* cluster = command->add_option("--cluster", options->cluster.address,
                                             "Spread the work over Ray: local:N workers here, ray://HOST:PORT, auto; the same bytes");
  cluster->option_text("ADDRESS");
  command->add_option("--python", options->cluster.python, "The Python that has narrow and Ray, for --cluster (default python3)")
      ->option_text("PROGRAM")
      ->needs(cluster);
  command->callback(
      [&context, command, options] { context.run = [&context, command, options] { run_quantize(context, *command, *options); }; });
}

}  // namespace narrow::command
