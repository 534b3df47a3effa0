/// narrow compare: how far the values of one checkpoint are from another's, tensor by tensor.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "compare_models.h"
#include "model_tensors.h"
#include "narrow/error.h"
#include "narrow/quantize.h"
#include "report/numbers.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;

struct CompareOptions {
  std::string a, b;
};

struct Compared {
  std::string name;
  std::string scheme;  ///< of the quantized side; empty where both are plain
  ErrorMetrics error;
  std::optional<double> clipped;  ///< where one side is quantized
};

struct Comparison {
  std::vector<Compared> tensors;
  std::vector<std::string> problems;  ///< tensors that cannot be compared, one sentence each
  std::int64_t identical = 0;
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.byte_size() == b.byte_size() &&
         (a.byte_size() == 0 || std::memcmp(a.data(), b.data(), a.byte_size()) == 0);
}

void compare_tensor(const ModelTensors& a, const ModelTensors& b, const std::string& name, Comparison& result) {
  const ModelTensor x = a.read(name), y = b.read(name);
  if (x.values.shape() != y.values.shape()) {
    result.problems.push_back(fmt::format("{}: shape {} and {}", name, to_string(x.values.shape()), to_string(y.values.shape())));
    return;
  }
  if (!is_floating(x.values.dtype()) || !is_floating(y.values.dtype())) {
    if (same_bytes(x.values, y.values))
      ++result.identical;
    else
      result.problems.push_back(fmt::format("{}: {} and {} of other bytes", name, name_of(x.values.dtype()), name_of(y.values.dtype())));
    return;
  }
  const bool of_b = y.scheme.has_value();
  const ModelTensor& quantized = of_b ? y : x;
  Compared compared;
  compared.name = name;
  compared.error = compare(x.values, y.values);
  if (quantized.scheme) compared.scheme = quantized.scheme->to_string();
  if (quantized.quantized) compared.clipped = clipped_share(of_b ? x.values : y.values, *quantized.quantized);
  if (compared.error.max_absolute == 0.0) ++result.identical;
  result.tensors.push_back(std::move(compared));
}

Comparison compare_all(Context& context, const ModelTensors& a, const ModelTensors& b) {
  Comparison result;
  const std::vector<std::string> names = a.names();
  std::uint64_t total = 0, done = 0;
  for (const std::string& name : names) total += a.stored_bytes(name);
  const auto mode = context.err_is_terminal ? context.progress_mode() : report::ProgressMode::kNone;
  report::Progress progress(stderr, mode, context.err, "compare", static_cast<std::int64_t>(names.size()));
  for (const std::string& name : names) {
    if (b.contains(name))
      compare_tensor(a, b, name, result);
    else
      result.problems.push_back(fmt::format("{}: only in A", name));
    done += a.stored_bytes(name);
    progress.update(name, "", done, total);
  }
  for (const std::string& name : b.names())
    if (!a.contains(name)) result.problems.push_back(fmt::format("{}: only in B", name));
  // A NaN is the worst of all, then the lowest ratio.
  const auto rank = [](const Compared& tensor) { return std::isnan(tensor.error.sqnr_db) ? -INFINITY : tensor.error.sqnr_db; };
  std::stable_sort(result.tensors.begin(), result.tensors.end(), [&](const Compared& x, const Compared& y) { return rank(x) < rank(y); });
  return result;
}

/// The ratio over all values together, from the tensors' own sums.
double total_sqnr(const std::vector<Compared>& tensors) {
  double signal = 0.0, noise = 0.0;
  for (const Compared& tensor : tensors) {
    const double squared = tensor.error.rms * tensor.error.rms * static_cast<double>(tensor.error.count);
    noise += squared;
    if (squared > 0.0) signal += squared * std::pow(10.0, tensor.error.sqnr_db / 10.0);
  }
  return noise == 0.0 ? INFINITY : 10.0 * std::log10(signal / noise);
}

void run_compare(Context& context, const CompareOptions& options) {
  const ModelTensors a(options.a), b(options.b);
  for (const ModelTensors* side : {&a, &b}) ecosystem_of(side->checkpoint());  // throws for a method that narrow does not read
  const Comparison result = compare_all(context, a, b);
  const double sqnr = total_sqnr(result.tensors);
  Json tensors = Json::array();
  report::Table table({{"tensor, worst first", Align::kLeft, true},
                       {"scheme"},
                       {"SQNR", Align::kRight},
                       {"max", Align::kRight},
                       {"RMS", Align::kRight},
                       {"clipped", Align::kRight},
                       {"mean", Align::kRight, false, true},
                       {"cosine", Align::kRight, false, true}});
  for (const Compared& tensor : result.tensors) {
    Json object{{"name", tensor.name}, {"scheme", tensor.scheme.empty() ? Json(nullptr) : Json(tensor.scheme)}};
    object.update(report::error_object(tensor.error));
    object["clipped"] = tensor.clipped ? Json(*tensor.clipped) : Json(nullptr);
    tensors.push_back(std::move(object));
    const ErrorMetrics& error = tensor.error;
    if (error.max_absolute == 0.0) continue;
    table.add({tensor.name,
               {tensor.scheme.empty() ? "-" : tensor.scheme, tensor.scheme.empty() ? Paint::kDim : Paint::kAccent},
               report::decibel_text(error.sqnr_db),
               report::value_text(error.max_absolute),
               report::value_text(error.rms),
               tensor.clipped ? report::percent_text(*tensor.clipped) : "-",
               report::value_text(error.mean_absolute),
               fmt::format("{:.6f}", error.cosine)});
  }
  context.answer(Json{{"a", options.a},
                      {"b", options.b},
                      {"sqnr_db", report::number(sqnr)},
                      {"identical", result.identical},
                      {"problems", result.problems},
                      {"tensors", tensors}});
  if (table.row_count() > 0) context.print(table.render(context.out) + "\n");
  context.print(fmt::format("{} tensors differ, SQNR over their values {}; {} are identical\n", table.row_count(),
                            report::decibel_text(sqnr), result.identical));
  for (const std::string& problem : result.problems)
    context.print(fmt::format("{}  {}\n", report::painted(context.out, Paint::kBad, "not comparable"), problem));
  if (!result.problems.empty()) context.exit_code = kCheckFailed;
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  auto options = std::make_shared<CompareModelsOptions>();
  CLI::App* command = add_command(app, "compare", "Compare two checkpoints tensor by tensor, or a model in several schemes",
                                  "  narrow compare model/ small/\n"
                                  "  narrow compare model/ int8:row W8A8 nvfp4 --tokens docs_tokens.safetensors --report report.html\n"
                                  "  narrow compare model/ --errors --tokens docs_tokens.safetensors\n\n"
                                  "With one checkpoint as B: the error of every tensor. With schemes, presets or several quantized\n"
                                  "models: perplexity, KL divergence, size and speed of each, and a page about them. Quantized by\n"
                                  "narrow or in any form that `narrow convert` reads; of a GGUF file it makes such a checkpoint.\n");
  command->add_option("A", options->model, "The reference: a checkpoint, plain or quantized")->type_name("")->required();
  command->add_option("B", options->schemes, "Another checkpoint; or schemes, presets and quantized models")->type_name("");
  command->add_option("--report", options->report, "Write a page with tables and plots: one HTML file, nothing else")->option_text("FILE");
  command->add_flag("--errors", options->errors, "FP8 with a scale per tensor, per row and per block, on the layers with outliers");
  add_token_options(*command, options->tokens, "eval");
  add_scheme_options(*command, options->scheme);
  command->callback([&context, options] {
    context.run = [&context, options] {
      const bool has_tokens = !options->tokens.tokens.empty() || !options->tokens.text.empty();
      if (options->errors) {
        if (!options->schemes.empty() || !options->report.empty())
          throw InvalidArgument("compare --errors is about one model and FP8's scales; leave B and --report away");
        return run_compare_errors(context, *options);
      }
      if (options->schemes.empty()) throw InvalidArgument("compare needs something to compare with: a checkpoint, or schemes; or --errors");
      if (!has_tokens && options->schemes.size() == 1 && std::filesystem::exists(options->schemes.front())) {
        if (!options->report.empty())
          throw InvalidArgument("compare --report shows how models read a text; give it one: --tokens FILE or --text FILE");
        return run_compare(context, {options->model, options->schemes.front()});
      }
      run_compare_models(context, *options);
    };
  });
}

}  // namespace narrow::command
