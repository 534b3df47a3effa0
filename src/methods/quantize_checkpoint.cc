/// quantize_checkpoint: file by file, tensor by tensor, run of rows by run of rows; then everything is read back.

#include <algorithm>
#include <chrono>

#include "io/atomic_file.h"
#include "methods/changed_checkpoint.h"
#include "methods/cuda/device_fit.h"
#include "methods/fit.h"
#include "methods/folding.h"
#include "methods/quantize_run.h"
#include "methods/tune.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

/// All files in this process.
QuantizeReport execute(const QuantizeRun& run, const fs::path& output, ShardWork work, const ProgressCallback& progress) {
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t done = 0;
  work.tell = [&](const PlannedTensor& planned, Stage stage, const ErrorMetrics& error) {
    done += planned.bytes_before;
    if (progress) progress({planned.name, stage, planned.fate == Fate::kQuantize, done, 2 * run.plan().bytes_before, error});
  };
  io::AtomicDirectory directory(output);
  std::vector<ShardResult> results;
  for (const OutputFile& file : run.files()) results.push_back(run.write(file, directory.place(), work));
  QuantizeReport report = run.finish(directory.place(), std::move(results));
  directory.commit();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

/// The plain checkpoint with the norms that the step tune learned, beside the output until this object goes.
class TunedNorms {
 public:
  TunedNorms(const Checkpoint& plain, const fs::path& output, const std::map<std::string, Tensor>& norms) : place_(output) {
    TensorChanges changes{.types = {}, .values = [&](const std::string& name) { return norms.at(name); }};
    for (const auto& [name, values] : norms) changes.types.emplace(name, DType::kF32);
    write_changed(plain, place_.place(), changes);
  }
  const fs::path& path() const { return place_.place(); }

 private:
  io::AtomicDirectory place_;
};

}  // namespace

QuantizeReport quantize_checkpoint(const fs::path& input, const fs::path& output, const Recipe& recipe, const ProgressCallback& progress) {
  const QuantizeRun run(input, recipe, output);
  run.check_output(output);
  return execute(run, output, {}, progress);
}

MethodReport quantize_checkpoint(const fs::path& input, const fs::path& output, const Recipe& recipe, const Method& method,
                                 const Calibration& calibration, const MethodRun& how) {
  {
    const QuantizeRun trial(input, recipe, output);  // everything that is wrong is wrong before the first computation
    trial.check_output(output);
    check_method(method, recipe, trial.plan(), calibration);
    check_layers(method, trial.input());
    if (!how.device.is_cpu()) check_device_run(method, how);
  }
  MethodReport report;
  const auto begin = std::chrono::steady_clock::now();
  const FoldedModel model(input, output, recipe, method, calibration);
  std::optional<QuantizeRun> run(std::in_place, model.path(), model.recipe(), output);
  std::optional<Journal> journal;
  std::map<std::string, QuantizedTensor> fitted;
  std::optional<TunedNorms> tuned;
  if (method.chooses_codes()) {
    const Calibration known = model.calibration();
    const bool keeps = !how.journal.empty();
    journal.emplace(how.journal, keeps ? fingerprint_of(run->input(), run->plan(), method, known, how.device) : "");
    fitted = fit_weights(run->input(), model.path(), run->plan(), method, known, *journal, how, report.modules);
    if (!how.device.is_cpu() && method.gptq) report.factored_by = device_factor_by();
    if (method.tune) {
      TunedModel made = tune(model.path(), std::move(fitted), known.windows, method.passes, *journal, how.tuned);
      fitted = std::move(made.weights);
      report.tuned = made.report;
      tuned.emplace(run->input(), output, made.norms);
      run.emplace(tuned->path(), model.recipe(), output);
    }
  }
  report.fit_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const FittedWeights of = [&](const PlannedTensor& planned) {
    const auto made = fitted.find(planned.name);
    return made == fitted.end() ? std::nullopt : std::optional(made->second);
  };
  report.files = execute(*run, output, {.fitted = of, .fits_to_inputs = method.needs_hessian() || method.tune}, how.progress);
  if (journal) journal->remove();
  report.fallbacks =
      std::count_if(report.modules.begin(), report.modules.end(), [](const FittedModule& module) { return !module.fallback.empty(); });
  return report;
}

}  // namespace narrow
