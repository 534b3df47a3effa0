/// The executor: perplexity, and calibration over a model's own layers.

#include <filesystem>

#include <nanobind/stl/filesystem.h>

#include "array.h"
#include "narrow/calibrate.h"
#include "narrow/evaluate.h"
#include "narrow/model.h"

namespace narrow::python {
namespace {

using Path = std::filesystem::path;

nb::dict evaluate_files(const Path& path, const TokenWindows& windows, std::string_view scheme, const std::optional<Path>& base) {
  Evaluation result;
  {
    const nb::gil_scoped_release unlocked;
    ModelOptions options{.compute = Compute::kFp32};  // as `narrow eval --compute fp32`
    if (!scheme.empty()) options.recipe = Recipe::of(scheme);
    const Model model = open_model(path, options);
    std::optional<Model> compared;
    EvaluateOptions how;
    if (base) {
      compared = open_model(*base, {.compute = Compute::kFp32});
      how.base = &*compared;
    }
    result = evaluate(model, windows, how);
  }
  nb::dict fields;
  fields["windows"] = result.windows;
  fields["tokens"] = result.tokens;
  fields["nll"] = result.nll;
  fields["perplexity"] = result.perplexity;
  fields["perplexity_stderr"] = result.perplexity_stderr;
  fields["tokens_per_second"] = result.tokens_per_second;
  if (result.divergence) {
    fields["base_perplexity"] = result.divergence->base_perplexity;
    fields["kl_mean"] = result.divergence->kl_mean;
    fields["top1_agreement"] = result.divergence->top1_agreement;
  }
  return fields;
}

}  // namespace

void bind_models(nb::module_& module) {
  module.def(
      "read_token_windows", [](const Path& path, const std::string& tensor) { return read_token_windows(path, tensor); }, nb::arg("path"),
      nb::arg("tensor"), Unlocked());
  module.def("evaluate", &evaluate_files, nb::arg("path"), nb::arg("windows"), nb::arg("scheme") = "", nb::arg("base") = nb::none());
  module.def(
      "calibrate",
      [](const Path& path, const TokenWindows& windows, bool with_second_moment) {
        return collect_statistics(open_model(path), windows, with_second_moment);
      },
      nb::arg("path"), nb::arg("windows"), nb::arg("with_second_moment") = false, Unlocked());
  module.def(
      "calibrate_chunks",
      [](const Path& path, const TokenWindows& windows, bool with_second_moment) {
        const Model model = open_model(path);
        std::vector<CalibrationStatistics> chunks;
        for (const WindowRange& range : text_chunks(windows))
          chunks.push_back(
              collect_statistics(model, std::span(windows).subspan(range.first, range.last - range.first), with_second_moment));
        return chunks;
      },
      nb::arg("path"), nb::arg("windows"), nb::arg("with_second_moment") = false, Unlocked());
  module.def(
      "text_chunks",
      [](const TokenWindows& windows) {
        std::vector<std::pair<std::size_t, std::size_t>> ranges;
        for (const WindowRange& range : text_chunks(windows)) ranges.emplace_back(range.first, range.last);
        return ranges;
      },
      nb::arg("windows"), Unlocked());
}

}  // namespace narrow::python
