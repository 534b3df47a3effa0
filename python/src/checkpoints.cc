/// Checkpoints: reading, writing, quantizing and verifying.

#include <filesystem>
#include <functional>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>

#include "array.h"
#include "narrow/checkpoint.h"
#include "narrow/evaluate.h"
#include "narrow/methods.h"
#include "narrow/recipe.h"
#include "operations.h"
#include "reports.h"

namespace narrow::python {
namespace {

using Path = std::filesystem::path;

nb::tuple parts_of(const QuantizedTensor& q, DType scale_dtype) {
  const ScaleGrid grid = q.grid();
  const std::int64_t rows = as_matrices(q.shape).total_rows();
  const Array codes{Tensor::over(q.codes, DType::kU8, {rows, static_cast<std::int64_t>(q.row_bytes())})};
  nb::object scales = nb::none(), zero_points = nb::none();
  if (q.scheme.has_scales()) scales = nb::cast(Array{Tensor::over(q.scales, scale_dtype, {grid.rows, grid.cols})});
  if (q.scheme.asymmetric) zero_points = nb::cast(Array{Tensor::over(q.zero_points, DType::kU8, {grid.rows, grid.cols})});
  return nb::make_tuple(q.scheme, nb::tuple(nb::cast(q.shape)), codes, scales, zero_points, q.outer_scale);
}

DType scale_dtype(const Scheme& scheme) {
  if (scheme.scale == kFp32) return DType::kF32;
  if (scheme.scale == kFp16) return DType::kF16;
  if (scheme.scale == kBf16) return DType::kBf16;
  return scheme.scale == kE8m0 ? DType::kF8E8m0 : DType::kF8E4m3;
}

nb::dict quantize_files(const Path& input, const Path& output, std::string_view scheme, const std::vector<std::string>& targets,
                        const std::vector<std::string>& ignore, const std::vector<std::pair<std::string, std::string>>& rules,
                        std::string_view method, const TokenWindows& windows, std::string_view on_nonfinite,
                        const std::function<void(std::string, std::uint64_t, std::uint64_t)>& progress) {
  QuantizeReport report;
  std::vector<std::string> idle;
  {
    const nb::gil_scoped_release unlocked;
    const Recipe recipe = make_recipe(scheme, targets, ignore, rules, on_nonfinite);
    const Method how = Method::parse(method);
    const ProgressCallback tell = report_to(progress);
    const Plan plan = plan_quantize(open_checkpoint(input), recipe, output);
    check_quantizes(plan);
    if (how.is_rounding()) check_calibrated(plan, recipe);
    report = how.is_rounding() ? quantize_checkpoint(input, output, recipe, tell)
                               : quantize_checkpoint(input, output, recipe, how, {.windows = windows}, {.progress = tell}).files;
    idle = idle_patterns(report.plan, recipe);
  }
  nb::dict fields = as_dict(report);
  fields["idle"] = idle;
  return fields;
}

}  // namespace

void bind_checkpoints(nb::module_& module) {
  nb::class_<Checkpoint>(module, "Checkpoint", "An open checkpoint; values are read when they are asked for.")
      .def(
          "__init__", [](Checkpoint* self, const Path& path) { new (self) Checkpoint(open_checkpoint(path)); }, nb::arg("path"), Unlocked())
      .def_prop_ro("directory", [](const Checkpoint& self) { return self.directory(); })
      .def_prop_ro("is_quantized", &Checkpoint::is_quantized)
      .def_prop_ro("config", &Checkpoint::config, "config.json as text; empty where there is none.")
      .def("names", &Checkpoint::names, "The tensors of the model, quantized or not, by name.")
      .def("__contains__", [](const Checkpoint& self, std::string_view name) { return self.contains(name); })
      .def("shape", [](const Checkpoint& self, std::string_view name) { return nb::tuple(nb::cast(self.shape(name))); })
      .def("dtype", [](const Checkpoint& self, std::string_view name) { return std::string(name_of(self.dtype(name))); })
      .def("scheme",
           [](const Checkpoint& self, std::string_view name) -> std::optional<Scheme> {
             const std::optional<QuantizedInfo> info = self.quantized_info(name);
             return info ? std::optional<Scheme>(info->scheme) : std::nullopt;
           })
      .def(
          "read", [](const Checkpoint& self, std::string_view name) { return Array{self.tensor(name)}; }, Unlocked())
      .def("read_quantized", [](const Checkpoint& self, std::string_view name) {
        const QuantizedTensor q = [&] {
          const nb::gil_scoped_release unlocked;
          return self.quantized(name);
        }();
        return parts_of(q, scale_dtype(q.scheme));
      });
  module.def(
      "write_safetensors",
      [](const Path& path, const std::map<std::string, Array>& arrays, const std::map<std::string, std::string>& metadata) {
        std::map<std::string, Tensor> tensors;
        for (const auto& [name, array] : arrays) tensors.emplace(name, array.tensor.contiguous());
        write_safetensors(path, tensors, metadata);
      },
      nb::arg("path"), nb::arg("arrays"), nb::arg("metadata"), Unlocked());
  module.def("verify_checkpoint", [](const Path& path) {
    VerifyReport report;
    {
      const nb::gil_scoped_release unlocked;
      report = verify_checkpoint(path);
    }
    return nb::make_tuple(report.tensors, report.bytes, report.problems);
  });
  module.def("quantize_checkpoint", &quantize_files, nb::arg("input"), nb::arg("output"), nb::arg("scheme"), nb::arg("targets"),
             nb::arg("ignore"), nb::arg("rules"), nb::arg("method"), nb::arg("windows"), nb::arg("on_nonfinite"),
             nb::arg("progress").none());
  module.def(
      "dequantize_checkpoint",
      [](const Path& input, const Path& output, std::string_view dtype) { dequantize_checkpoint(input, output, parse_dtype(dtype)); },
      nb::arg("input"), nb::arg("output"), nb::arg("dtype"), Unlocked());
  module.def(
      "fit_weight",
      [](const Array& w, const Scheme& scheme, const std::optional<Array>& second_moment, std::string_view method) {
        FittedWeight fitted;
        {
          const nb::gil_scoped_release unlocked;
          std::span<const double> moment;
          if (second_moment) moment = {second_moment->tensor.as<double>(), static_cast<std::size_t>(second_moment->tensor.size())};
          fitted = fit_weight(w.tensor, scheme, moment, Method::parse(method));
        }
        return nb::make_tuple(parts_of(fitted.quantized, scale_dtype(scheme)), fitted.loss_before, fitted.loss_after, fitted.fallback);
      },
      nb::arg("w"), nb::arg("scheme"), nb::arg("second_moment").none(), nb::arg("method"));
}

}  // namespace narrow::python
