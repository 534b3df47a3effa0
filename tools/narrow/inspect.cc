/// narrow inspect: what is in a checkpoint, and what its values look like.

#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands.h"
#include "model_tensors.h"
#include "narrow/error.h"
#include "report/numbers.h"
#include "report/plot.h"
#include "report/statistics.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;
using report::Statistics;

constexpr double kOutlierFactor = 6.0;
constexpr std::size_t kMostListedOutliers = 8;
constexpr std::size_t kHistogramBins = 24;

struct InspectOptions {
  std::string path, tensor;
  bool headers = false;
};

/// A logical tensor: what its header says and, where its values were read, what they look like.
struct Inspected {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::optional<Scheme> scheme;
  std::uint64_t bytes = 0;
  std::optional<Statistics> values;
  report::OutlierColumns outliers;

  std::int64_t elements() const { return element_count(shape); }
  std::string type_text() const { return scheme ? scheme->to_string() : std::string(name_of(dtype)); }
};

Inspected inspect_header(const Checkpoint& checkpoint, const std::string& name) {
  Inspected result;
  result.name = name;
  result.dtype = checkpoint.dtype(name);
  result.shape = checkpoint.shape(name);
  if (const auto info = checkpoint.quantized_info(name)) {
    result.scheme = info->scheme;
    result.bytes = quantized_bytes(info->scheme, info->shape);
  } else {
    result.bytes = checkpoint.stored(name).byte_size();
  }
  return result;
}

/// The same of weights in any form, and the values, where their type can be measured.
Inspected inspect_values(const ModelTensors& model, const std::string& name, Tensor& values) {
  Inspected result;
  if (model.is_foreign(name)) {
    const ModelTensor weight = model.read(name);
    values = weight.values;
    result = {.name = name,
              .dtype = values.dtype(),
              .shape = values.shape(),
              .scheme = weight.scheme,
              .bytes = model.stored_bytes(name),
              .values = {},
              .outliers = {}};
  } else {
    result = inspect_header(model.checkpoint(), name);
    if (!result.scheme && !report::is_measurable(result.dtype)) return result;
    values = model.checkpoint().tensor(name);
  }
  result.values = report::measure(values);
  result.outliers = report::outlier_columns(result.values->column_amax, kOutlierFactor);
  return result;
}

Json tensor_object(const Inspected& tensor) {
  Json object{{"name", tensor.name},
              {"dtype", name_of(tensor.dtype)},
              {"shape", tensor.shape},
              {"elements", tensor.elements()},
              {"bytes", tensor.bytes}};
  object["scheme"] = tensor.scheme ? Json(tensor.scheme->to_string()) : Json(nullptr);
  object["bits_per_weight"] =
      tensor.elements() > 0 ? Json(8.0 * static_cast<double>(tensor.bytes) / static_cast<double>(tensor.elements())) : Json(nullptr);
  if (!tensor.values) return object;
  const Statistics& values = *tensor.values;
  object["min"] = values.minimum;
  object["max"] = values.maximum;
  object["amax"] = values.amax;
  object["mean"] = report::number(values.mean);
  object["std"] = report::number(values.deviation);
  object["kurtosis"] = report::number(values.kurtosis);
  object["zeros"] = values.zeros;
  object["nans"] = values.nans;
  object["infinities"] = values.infinities;
  Json columns = Json::array();
  for (std::size_t i = 0; i < std::min(kMostListedOutliers, tensor.outliers.found.size()); ++i)
    columns.push_back({{"column", tensor.outliers.found[i].first}, {"ratio", tensor.outliers.found[i].second}});
  object["outlier_columns"] = {{"count", tensor.outliers.found.size()}, {"median_amax", tensor.outliers.median}, {"largest", columns}};
  return object;
}

/// Elements, bytes, and bits per weight of the quantized tensors.
struct Totals {
  std::int64_t tensors = 0, quantized = 0, elements = 0, weights = 0;
  std::uint64_t bytes = 0, weight_bytes = 0;

  explicit Totals(const std::vector<Inspected>& all) {
    for (const Inspected& tensor : all) {
      ++tensors;
      elements += tensor.elements();
      bytes += tensor.bytes;
      if (!tensor.scheme) continue;
      ++quantized;
      weights += tensor.elements();
      weight_bytes += tensor.bytes;
    }
  }
  double bits_per_weight() const { return weights > 0 ? 8.0 * static_cast<double>(weight_bytes) / static_cast<double>(weights) : 0.0; }
};

std::string outlier_list(const report::OutlierColumns& outliers) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kMostListedOutliers, outliers.found.size()); ++i)
    text += fmt::format("{}{} ({:.1f}x)", i > 0 ? ", " : "", outliers.found[i].first, outliers.found[i].second);
  return outliers.found.size() > kMostListedOutliers ? text + ", .." : text;
}

void print_table(Context& context, const std::vector<Inspected>& tensors, bool headers_only) {
  std::vector<report::Column> columns{{"tensor", Align::kLeft, true}, {"type"}, {"shape"}, {"size", Align::kRight}};
  if (!headers_only) {
    for (const char* required : {"amax", "std", "kurtosis"}) columns.push_back({required, Align::kRight});
    columns.push_back({"outliers", Align::kRight});
    for (const char* optional : {"min", "max", "mean"}) columns.push_back({optional, Align::kRight, false, true});
  }
  report::Table table(columns);
  for (const Inspected& tensor : tensors) {
    std::vector<report::Cell> cells{tensor.name,
                                    {tensor.type_text(), tensor.scheme ? Paint::kAccent : Paint::kPlain},
                                    to_string(tensor.shape),
                                    report::bytes_text(tensor.bytes)};
    if (!headers_only && tensor.values) {
      const Statistics& values = *tensor.values;
      const std::size_t outliers = tensor.outliers.found.size();
      for (const double value : {values.amax, values.deviation, values.kurtosis}) cells.emplace_back(report::value_text(value));
      cells.emplace_back(outliers > 0 ? std::to_string(outliers) : "-", outliers > 0 ? Paint::kWarning : Paint::kDim);
      for (const double value : {values.minimum, values.maximum, values.mean}) cells.emplace_back(report::value_text(value));
    }
    table.add(std::move(cells));
  }
  context.print(table.render(context.out));
}

void print_notes(Context& context, const ModelTensors& model, const std::vector<Inspected>& tensors) {
  const Checkpoint& checkpoint = model.checkpoint();
  std::string outliers, damaged;
  for (const Inspected& tensor : tensors) {
    if (!tensor.outliers.found.empty()) outliers += fmt::format("  {}: {}\n", tensor.name, outlier_list(tensor.outliers));
    if (tensor.values && tensor.values->nans + tensor.values->infinities > 0)
      damaged += fmt::format("  {}: {} NaN, {} infinite\n", tensor.name, tensor.values->nans, tensor.values->infinities);
  }
  if (!outliers.empty())
    context.print(
        fmt::format("\nOutlier columns (amax over {:g} times the median column's), largest first:\n{}", kOutlierFactor, outliers));
  if (!damaged.empty())
    context.print(fmt::format("\n{}\n{}", report::painted(context.out, Paint::kBad, "Values that are not finite:"), damaged));
  const Totals totals(tensors);
  context.print(fmt::format("\n{} tensors, {} parameters, {} in {} file{}", totals.tensors, report::count_text(totals.elements),
                            report::bytes_text(totals.bytes), checkpoint.tensor_files().size(),
                            checkpoint.tensor_files().size() == 1 ? "" : "s"));
  if (totals.quantized > 0)
    context.print(fmt::format("; {} quantized at {:.3f} bits per weight", totals.quantized, totals.bits_per_weight()));
  if (!model.form().empty() && !checkpoint.is_quantized()) context.print(fmt::format("; the form is {}", model.form()));
  context.print("\n");
}

/// Of headers alone: the tensors of other ecosystems' forms as they are stored.
std::vector<Inspected> inspect_headers(const Checkpoint& checkpoint) {
  std::vector<Inspected> tensors;
  for (const std::string& name : checkpoint.names()) tensors.push_back(inspect_header(checkpoint, name));
  return tensors;
}

std::vector<Inspected> inspect_values(Context& context, const ModelTensors& model) {
  std::vector<Inspected> tensors;
  std::uint64_t total = 0, done = 0;
  const std::vector<std::string> names = model.names();
  for (const std::string& name : names) total += model.stored_bytes(name);
  const auto mode = context.err_is_terminal ? context.progress_mode() : report::ProgressMode::kNone;
  report::Progress progress(stderr, mode, context.err, "inspect", static_cast<std::int64_t>(names.size()));
  for (const std::string& name : names) {
    Tensor values;
    tensors.push_back(inspect_values(model, name, values));
    done += tensors.back().bytes;
    progress.update(name, "", done, total);
  }
  return tensors;
}

void inspect_all(Context& context, const InspectOptions& options, const ModelTensors& model) {
  const Checkpoint& checkpoint = model.checkpoint();
  const std::vector<Inspected> tensors = options.headers ? inspect_headers(checkpoint) : inspect_values(context, model);
  const Totals totals(tensors);
  Json list = Json::array();
  for (const Inspected& tensor : tensors) list.push_back(tensor_object(tensor));
  context.answer(Json{{"path", options.path},
                      {"quantized", checkpoint.is_quantized()},
                      {"form", model.form().empty() ? Json(nullptr) : Json(model.form())},
                      {"files", checkpoint.tensor_files()},
                      {"tensor_count", totals.tensors},
                      {"parameters", totals.elements},
                      {"bytes", totals.bytes},
                      {"bits_per_weight", totals.quantized > 0 ? Json(totals.bits_per_weight()) : Json(nullptr)},
                      {"tensors", list}});
  print_table(context, tensors, options.headers);
  print_notes(context, model, tensors);
}

/// "columns 0.02 .. 0.31 .. 1.9": the smallest, median and largest amax of the channels of one direction.
std::string channel_text(const char* direction, std::vector<double> amax) {
  if (amax.empty()) return "";
  std::sort(amax.begin(), amax.end());
  return fmt::format("  amax of its {} {}: smallest {}, median {}, largest {}\n", amax.size(), direction, report::value_text(amax.front()),
                     report::value_text(amax[amax.size() / 2]), report::value_text(amax.back()));
}

/// A tensor by its name or its module's; where there is none, the sentence names those whose names have the text.
std::string tensor_named(const ModelTensors& model, const std::string& path, const std::string& text) {
  constexpr std::size_t kNamed = 3;
  for (const std::string& name : {text, text + ".weight"})
    if (model.contains(name)) return name;
  std::vector<std::string> near;
  for (const std::string& name : model.names())
    if (name.find(text) != std::string::npos) near.push_back(name);
  const std::vector<std::string> shown(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, near.size())));
  throw InvalidArgument(fmt::format("{} has no tensor '{}'; {}", path, text,
                                    near.empty() ? "--headers lists them all"
                                                 : fmt::format("{} have it in their names: {}{}", near.size(), fmt::join(shown, ", "),
                                                               near.size() > kNamed ? ", .." : "")));
}

void inspect_one(Context& context, const InspectOptions& options, const ModelTensors& model) {
  Tensor data;
  const Inspected tensor = inspect_values(model, tensor_named(model, options.path, options.tensor), data);
  if (!tensor.values)
    throw Unsupported(fmt::format("tensor '{}' is of type {}, whose values cannot be measured", tensor.name, name_of(tensor.dtype)));
  const Statistics& values = *tensor.values;
  const report::Histogram histogram = report::count_values(data, values.minimum, values.maximum, kHistogramBins);

  Json object = tensor_object(tensor);
  object["histogram"] = {{"low", histogram.low}, {"high", histogram.high}, {"counts", histogram.bins}};
  object["column_amax"] = values.column_amax;
  context.answer(object);

  std::string text = fmt::format("{}  {} {}, {}\n", report::painted(context.out, Paint::kBold, tensor.name), tensor.type_text(),
                                 to_string(tensor.shape), report::bytes_text(tensor.bytes));
  text += fmt::format("  min {}   max {}   amax {}   mean {}   std {}   kurtosis {} (normal: 3)\n", report::value_text(values.minimum),
                      report::value_text(values.maximum), report::value_text(values.amax), report::value_text(values.mean),
                      report::value_text(values.deviation), report::value_text(values.kurtosis));
  text += fmt::format("  zeros {}   NaN {}   infinite {}\n", report::count_text(values.zeros), values.nans, values.infinities);
  text += channel_text("columns", values.column_amax);
  if (tensor.shape.size() == 2) {
    const Tensor transposed = Tensor::borrow(data.data(), data.dtype(), {tensor.shape[1], tensor.shape[0]}, {1, tensor.shape[1]});
    text += channel_text("rows", report::measure(transposed).column_amax);
  }
  if (!tensor.outliers.found.empty())
    text += fmt::format("  {} outlier columns (over {:g} times the median): {}\n", tensor.outliers.found.size(), kOutlierFactor,
                        outlier_list(tensor.outliers));
  const std::size_t room = context.out.width > 0 ? static_cast<std::size_t>(std::min(context.out.width, 120)) : 100;
  text += fmt::format("\n{}\n", report::painted(context.out, Paint::kBold, "Values per bin (bars are logarithmic)"));
  context.print(text + report::histogram_bars(context.out, histogram, room > 50 ? room - 28 : 22, true));
}

}  // namespace

void add_inspect(CLI::App& app, Context& context) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = add_command(app, "inspect", "Show what is in a checkpoint and how its values are spread",
                                  "  narrow inspect model/\n  narrow inspect model/ --tensor model.layers.0.mlp.down_proj.weight\n");
  command->add_option("PATH", options->path, "A safetensors file or a directory, plain or quantized")->type_name("")->required();
  command->add_option("--tensor", options->tensor, "One tensor, with its channels and a histogram")->option_text("NAME");
  command->add_flag("--headers", options->headers, "Names, types and shapes alone, as they are stored; reads no values");
  command->callback([&context, options] {
    context.run = [&context, options] {
      const ModelTensors model(options->path);
      options->tensor.empty() ? inspect_all(context, *options, model) : inspect_one(context, *options, model);
    };
  });
}

}  // namespace narrow::command
