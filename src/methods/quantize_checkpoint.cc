/// quantize_checkpoint: file by file, tensor by tensor, run of rows by run of rows; then everything is read back.

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/quantized_layout.h"
#include "io/safetensors_header.h"
#include "io/text.h"
#include "kernels/storage.h"
#include "methods/activation_recipe.h"
#include "methods/fit.h"
#include "methods/folding.h"
#include "methods/output_directory.h"
#include "methods/plan.h"
#include "methods/preflight.h"
#include "methods/read_back.h"
#include "methods/special_values.h"
#include "methods/whole_scales.h"
#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

/// The sentence for a tensor that cannot be quantized: names it, and the element where a value is not finite.
[[noreturn]] void explain_failure(const PlannedTensor& planned, const Tensor& rows, std::int64_t first_element, const InvalidArgument& error) {
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const float value = load_value(rows.data(), rows.dtype(), i);
    if (std::isfinite(value)) continue;
    throw InvalidArgument(
        fmt::format("quantize: tensor {} has {} at element {}, which {} cannot hold; mend the tensor, ignore it, or choose keep or nearest "
                    "for such values",
                    io::in_quotes(planned.name), std::isnan(value) ? "NaN" : "an infinity", first_element + i, planned.scheme.to_string()));
  }
  throw InvalidArgument(fmt::format("quantize: tensor {}: {}", io::in_quotes(planned.name), error.what()));
}

/// Runs that share scales (one per tensor or column) write them with the first.
void append_parts(io::SafetensorsWriter& writer, const std::vector<io::StoredPart>& parts, const QuantizedTensor& q, bool is_first, bool has_new_scales) {
  for (const io::StoredPart& part : parts) {
    if (part.part == io::Part::kCodes) writer.append(part.name, q.codes.bytes());
    if (part.part == io::Part::kScales && has_new_scales) writer.append(part.name, q.scales.bytes());
    if (part.part == io::Part::kZeroPoints && has_new_scales) writer.append(part.name, q.zero_points.bytes());
    if (part.part == io::Part::kOuterScale && is_first) writer.append(part.name, std::as_bytes(std::span(&q.outer_scale, 1)));
  }
}

/// Quantizes one tensor into the file and returns the hash of its source.
std::string write_quantized(const Checkpoint& input, const PlannedTensor& planned, const QuantizeOptions& options, io::SafetensorsWriter& writer) {
  const TensorInfo& info = input.stored(planned.name);
  const std::vector<io::StoredPart> parts = io::stored_parts(planned.name, planned.scheme, planned.shape);
  const std::int64_t cols = as_matrices(planned.shape).cols;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(cols) * static_cast<std::uint64_t>(bits_of(planned.dtype)) / 8;
  ReusedBuffer memory;
  const auto read = [&](const RowChunk& chunk) {
    const Tensor rows = memory.tensor(planned.dtype, chunk.shape);
    input.read_bytes(info, static_cast<std::uint64_t>(chunk.first) * row_bytes, {rows.data(), rows.byte_size()});
    return rows;
  };
  const Reading reading = plan_reading(planned.scheme, options, planned.shape, planned.dtype);
  std::optional<WholeScales> whole;
  if (reading.twice) whole.emplace(planned.scheme, planned.shape, reading.chunks, read);
  io::Hasher source;
  std::int64_t grid_rows_written = 0;
  std::optional<QuantizedTensor> q;
  for (const RowChunk& chunk : reading.chunks) {
    const Tensor rows = read(chunk);
    source.add({rows.data(), rows.byte_size()});
    try {
      if (!q || q->shape != chunk.shape) q = allocate_quantized(planned.scheme, chunk.shape);
      quantize_into(rows, *q, whole ? whole->options_for(chunk, options) : options);
      append_parts(writer, parts, *q, chunk.first == 0, chunk.first_grid_row >= grid_rows_written);
      grid_rows_written = chunk.first_grid_row + chunk.grid_rows;
    } catch (const InvalidArgument& error) {
      explain_failure(planned, rows, chunk.first * cols, error);
    }
  }
  return source.digits();
}

/// Writes what a method has made of one tensor, and returns the hash of its source.
std::string write_fitted(const Checkpoint& input, const PlannedTensor& planned, const QuantizedTensor& q, io::SafetensorsWriter& writer) {
  append_parts(writer, io::stored_parts(planned.name, planned.scheme, planned.shape), q, true, true);
  return stream_tensor(input, input.stored(planned.name), [](std::span<const std::byte>) {});
}

/// config.json with the object that tells a reader what this is.
std::string config_text(const Checkpoint& input, const Recipe& recipe) {
  const std::string text = input.config();
  io::OrderedJson config = text.empty() ? io::OrderedJson::object() : io::parse_ordered_json(text, input.directory() / io::kConfigFile);
  io::OrderedJson quantization{{"quant_method", "narrow"}, {"version", io::kManifestVersion}, {"scheme", recipe.scheme.to_string()}};
  quantization["targets"] = recipe.targets.empty() ? std::vector<std::string>{"Linear"} : recipe.targets;
  quantization["ignore"] = recipe.ignore;
  quantization["rules"] = io::OrderedJson::array();
  for (const auto& [pattern, scheme] : recipe.rules) quantization["rules"].push_back({{"match", pattern}, {"scheme", scheme.to_string()}});
  if (recipe.activations) quantization["activations"] = activations_json(*recipe.activations);
  config["quantization_config"] = std::move(quantization);
  try {
    return config.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("quantize: a pattern of the recipe is not UTF-8");
  }
}

/// One run over a checkpoint.
class Run {
 public:
  Run(const fs::path& input, const fs::path& output, const Recipe& recipe, const ProgressCallback& progress)
      : input_(open_checkpoint(input)), recipe_(recipe), progress_(progress) {
    report_.plan = plan_quantize(input_, recipe, output);
    if (recipe.on_nonfinite == OnNonFinite::kKeep) report_.kept = keep_nonfinite(input_, recipe, report_.plan);
    files_ = layout_output(input_, report_.plan.tensors);
    config_ = config_text(input_, recipe);
    constexpr std::uint64_t kPerTensor = 1024;  // of manifest and index
    check_output_place(input, output, report_.plan.file_bytes + side_file_bytes(input_) + kPerTensor * (report_.plan.tensors.size() + 1024));
  }

  const Plan& plan() const { return report_.plan; }

  /// Has a method quantize before anything is written.
  void fit(const fs::path& input, const Method& method, const Calibration& calibration, const Journal& journal, const FitCallback& callback,
           std::vector<FittedModule>& modules) {
    method_ = method;
    fitted_ = fit_weights(input_, input, report_.plan, method, calibration, journal, callback, modules);
  }

  QuantizeReport execute(const fs::path& output) {
    const auto begin = std::chrono::steady_clock::now();
    io::AtomicDirectory directory(output);
    manifest_.narrow_version = io::library_version();
    for (const OutputFile& file : files_) {
      write(file, directory.place());
      verify(file, directory.place());
    }
    manifest_.side_files = write_side_files(input_, directory.place(), config_, files_);
    io::write_text(directory.place() / io::kManifestFile, io::print_manifest(manifest_));
    directory.commit();
    report_.sqnr_db = noise_ == 0.0 ? std::numeric_limits<double>::infinity() : 10.0 * std::log10(signal_ / noise_);
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::sort(report_.tensors.begin(), report_.tensors.end(), [](const TensorResult& a, const TensorResult& b) { return a.name < b.name; });
    return std::move(report_);
  }

 private:
  void write(const OutputFile& file, const fs::path& place) {
    io::SafetensorsWriter writer(place / file.name, file.layout);
    for (const PlannedTensor* planned : file.tensors) {
      io::Manifest::LogicalTensor& entry = manifest_.tensors[planned->name];
      entry.shape = planned->shape;
      entry.source_dtype = planned->dtype;
      if (planned->fate == Fate::kQuantize) {
        entry.scheme = planned->scheme;
        const auto made = fitted_.find(planned->name);
        entry.source_hash = made != fitted_.end() ? write_fitted(input_, *planned, made->second, writer)
                                                  : write_quantized(input_, *planned, options_of(recipe_), writer);
        for (const io::StoredPart& part : io::stored_parts(planned->name, planned->scheme, planned->shape)) entry.stored[part.name] = {file.name, writer.hash(part.name)};
      } else {
        entry.source_hash = stream_tensor(input_, input_.stored(planned->name), [&](std::span<const std::byte> bytes) { writer.append(planned->name, bytes); });
        entry.stored[planned->name] = {file.name, writer.hash(planned->name)};
      }
      tell(*planned, Stage::kWritten, {});
    }
    writer.commit(io::Names::kLeftToDirectory);
    manifest_.files[file.name] = {file.layout.file_bytes, file.layout.header.size(), io::hash_of(file.layout.header)};
  }

  void verify(const OutputFile& file, const fs::path& place) {
    const WrittenFile written(place / file.name, file.layout);
    for (const PlannedTensor* planned : file.tensors) {
      const io::Manifest::LogicalTensor& entry = manifest_.tensors.at(planned->name);
      if (planned->fate == Fate::kCopy) {
        written.check_copy(input_, planned->name, entry);
        tell(*planned, Stage::kVerified, {});
        continue;
      }
      const bool is_nearest = !method_.needs_hessian() || !fitted_.contains(planned->name);
      const ReadBack result = written.check_quantized(input_, planned->name, entry, is_nearest ? Codes::kNearest : Codes::kAny);
      signal_ += result.signal;
      noise_ += result.noise;
      report_.tensors.push_back({planned->name, planned->scheme, result.error, result.clipped, result.source});
      tell(*planned, Stage::kVerified, result.error);
    }
  }

  void tell(const PlannedTensor& planned, Stage stage, const ErrorMetrics& error) {
    done_ += planned.bytes_before;
    if (progress_) progress_({planned.name, stage, planned.fate == Fate::kQuantize, done_, 2 * report_.plan.bytes_before, error});
  }

  Checkpoint input_;
  const Recipe& recipe_;
  const ProgressCallback& progress_;
  std::vector<OutputFile> files_;
  std::string config_;
  Method method_;
  std::map<std::string, QuantizedTensor> fitted_;  ///< by a method, by tensor
  io::Manifest manifest_;
  QuantizeReport report_;
  std::uint64_t done_ = 0;
  double signal_ = 0.0, noise_ = 0.0;
};

}  // namespace

QuantizeReport quantize_checkpoint(const fs::path& input, const fs::path& output, const Recipe& recipe, const ProgressCallback& progress) {
  return Run(input, output, recipe, progress).execute(output);
}

MethodReport quantize_checkpoint(const fs::path& input, const fs::path& output, const Recipe& recipe, const Method& method,
                                 const Calibration& calibration, const MethodRun& how) {
  {
    const Run trial(input, output, recipe, how.progress);  // everything that is wrong is wrong before the first computation
    check_method(method, recipe, trial.plan(), calibration);
  }
  MethodReport report;
  const auto begin = std::chrono::steady_clock::now();
  const FoldedModel model(input, output, recipe, method, calibration);
  Run run(model.path(), output, model.recipe(), how.progress);
  std::optional<Journal> journal;
  if (method.chooses_codes()) {
    const Calibration known = model.calibration();
    const bool keeps = !how.journal.empty();
    journal.emplace(how.journal, keeps ? fingerprint_of(open_checkpoint(model.path()), run.plan(), method, known) : "");
    run.fit(model.path(), method, known, *journal, how.fitted, report.modules);
  }
  report.fit_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.files = run.execute(output);
  if (journal) journal->remove();
  report.fallbacks = std::count_if(report.modules.begin(), report.modules.end(), [](const FittedModule& module) { return !module.fallback.empty(); });
  return report;
}

}  // namespace narrow
