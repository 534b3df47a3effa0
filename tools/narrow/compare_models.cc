#include "compare_models.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "model_tensors.h"
#include "narrow/error.h"
#include "narrow/quantize.h"
#include "report/evaluation.h"
#include "report/model_page.h"
#include "report/numbers.h"
#include "report/statistics.h"
#include "report/table.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;

/// One column of the comparison.
struct Candidate {
  std::string name;
  Model model;
  Evaluation evaluation;
};

Candidate run_candidate(Context& context, const CompareModelsOptions& options, const std::string& name, const Model& base,
                        const TokenWindows& windows) {
  const bool is_directory = std::filesystem::exists(name);
  SchemeOptions scheme = options.scheme;
  if (!is_directory) scheme.scheme = name;
  const Model model = open_model(is_directory ? name : options.model, make_model_options(scheme));
  EvaluateOptions how;
  how.base = &base;
  how.cache = KvCache::parse_scheme(options.scheme.cache);
  const auto mode = context.err_is_terminal ? context.progress_mode() : report::ProgressMode::kNone;
  report::Progress progress(stderr, mode, context.err, name, static_cast<std::int64_t>(windows.size()), report::ProgressUnit::kSteps);
  how.progress = [&](std::int64_t done, std::int64_t count, double nll) {
    throw_if_interrupted();
    progress.update(fmt::format("perplexity {:.3f}", std::exp(nll)), "", static_cast<std::uint64_t>(done),
                    static_cast<std::uint64_t>(count));
  };
  Evaluation evaluation = evaluate(model, windows, how);
  return {name, model, std::move(evaluation)};
}

Json row_object(const std::string& name, const Model& model, const Evaluation& evaluation, std::uint64_t scored_bytes) {
  Json row{{"name", name}};
  row.update(report::model_object(model));
  row.update(report::evaluation_object(evaluation, scored_bytes));
  return row;
}

/// What is no checkpoint must be a scheme or a preset; asked before the models run.
void check_candidate(const std::string& name) {
  if (std::filesystem::exists(name)) return;
  try {
    Recipe::of(name);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{} does not exist, and it is no scheme either: {}", name, error.what()));
  }
}

}  // namespace

void run_compare_models(Context& context, const CompareModelsOptions& options) {
  for (const std::string& name : options.schemes) check_candidate(name);
  if (!options.report.empty()) check_output_file(options.report);
  const LoadedTokens loaded = load_tokens(options.tokens, options.model);
  catch_interrupts();
  SchemeOptions plain = options.scheme;
  plain.activations = {};
  const Model base = open_model(options.model, make_model_options(plain));
  EvaluateOptions how;
  how.cache = KvCache::parse_scheme(options.scheme.cache);
  const Evaluation base_evaluation = evaluate(base, loaded.windows, how);
  std::vector<Candidate> candidates;
  for (const std::string& name : options.schemes) candidates.push_back(run_candidate(context, options, name, base, loaded.windows));

  report::Table table({{"scheme"},
                       {"bits/weight", Align::kRight},
                       {"size", Align::kRight},
                       {"perplexity", Align::kRight},
                       {"KL mean", Align::kRight},
                       {"same top", Align::kRight},
                       {"tokens/s", Align::kRight},
                       {"weights", Align::kLeft, false, true},
                       {"activations", Align::kLeft, false, true}});
  const auto add = [&](const std::string& name, const Model& model, const Evaluation& e) {
    table.add({{name, Paint::kAccent},
               fmt::format("{:.3f}", model.bits_per_weight()),
               report::bytes_text(model.weight_bytes()),
               fmt::format("{:.3f}", e.perplexity),
               e.divergence ? fmt::format("{:.5f}", e.divergence->kl_mean) : "-",
               e.divergence ? report::percent_text(e.divergence->top1_agreement) : "-",
               report::count_text(static_cast<std::int64_t>(e.tokens_per_second)),
               report::weights_text(model),
               report::activations_text(model)});
  };
  add("as it is", base, base_evaluation);
  Json rows = Json::array();
  for (const Candidate& candidate : candidates) {
    add(candidate.name, candidate.model, candidate.evaluation);
    rows.push_back(row_object(candidate.name, candidate.model, candidate.evaluation, loaded.scored_bytes));
  }
  Json answer{{"model", options.model},
              {"windows", base_evaluation.windows},
              {"tokens", base_evaluation.tokens},
              {"base", row_object("as it is", base, base_evaluation, loaded.scored_bytes)},
              {"schemes", rows}};
  if (!options.report.empty()) {
    report::PageInput page{.path = options.model, .answer = answer, .windows = loaded.windows, .base = base};
    for (const Candidate& candidate : candidates) page.models.push_back({candidate.name, candidate.model});
    io::write_text(options.report, report::model_page(page));
  }
  context.answer(answer);
  context.print(table.render(context.out));
  if (!options.report.empty())
    context.print(fmt::format("\n{}  open it in a browser\n", report::painted(context.out, Paint::kGood, options.report)));
}

void run_compare_errors(Context& context, const CompareModelsOptions& options) {
  constexpr std::size_t kShown = 8;
  const ModelTensors tensors(options.model);
  struct Layer {
    std::string name;
    Tensor values;
    double outlier = 0.0;  ///< largest magnitude over the median channel's
  };
  std::vector<Layer> layers;
  const auto add = [&](const std::string& name, const Tensor& values) {
    std::vector<double> channels = report::measure(values).column_amax;
    const double largest = *std::max_element(channels.begin(), channels.end());
    std::nth_element(channels.begin(), channels.begin() + static_cast<std::ptrdiff_t>(channels.size() / 2), channels.end());
    layers.push_back({name, values, largest / std::max(channels[channels.size() / 2], 1e-30)});
  };
  const Model model = open_model(options.model);
  for (const LinearInfo& linear : model.linears()) add(linear.module + ".weight", tensors.read(linear.module + ".weight").values);
  if (!options.tokens.tokens.empty() || !options.tokens.text.empty()) {
    const LoadedTokens loaded = load_tokens(options.tokens, options.model);
    KvCache cache = model.make_cache();
    const Sequence sequence{loaded.windows.front(), &cache};
    model.forward({&sequence, 1}, Logits::kLast,
                  [&](std::span<const std::string> modules, const Tensor& x) { add(modules.front() + " (input)", x); });
  }
  std::stable_sort(layers.begin(), layers.end(), [](const Layer& a, const Layer& b) { return a.outlier > b.outlier; });
  layers.resize(std::min(layers.size(), kShown));

  report::Table table({{"layer, largest outliers first", Align::kLeft, true},
                       {"outlier", Align::kRight},
                       {"scales"},
                       {"mean error", Align::kRight},
                       {"max error", Align::kRight},
                       {"SQNR", Align::kRight}});
  Json rows = Json::array();
  for (const Layer& layer : layers)
    for (const char* scheme : {"fp8_e4m3:tensor", "fp8_e4m3:row", "fp8_e4m3:block128"}) {
      const ErrorMetrics error = compare(layer.values, dequantize(quantize(layer.values, Scheme::parse(scheme))));
      table.add({layer.name,
                 fmt::format("{:.1f}", layer.outlier),
                 {scheme, Paint::kAccent},
                 report::value_text(error.mean_absolute),
                 report::value_text(error.max_absolute),
                 report::decibel_text(error.sqnr_db)});
      Json row{{"layer", layer.name}, {"outlier_ratio", layer.outlier}, {"scheme", scheme}};
      row.update(report::error_object(error));
      rows.push_back(std::move(row));
    }
  context.answer({{"model", options.model}, {"errors", rows}});
  context.print(table.render(context.out));
}

}  // namespace narrow::command
