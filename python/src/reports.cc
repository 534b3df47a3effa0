#include "reports.h"

namespace narrow::python {

Recipe make_recipe(std::string_view scheme, const std::vector<std::string>& targets, const std::vector<std::string>& ignore,
                   const std::vector<std::pair<std::string, std::string>>& rules, std::string_view on_nonfinite) {
  Recipe recipe = Recipe::of(scheme);
  recipe.on_nonfinite = parse_on_nonfinite(on_nonfinite);
  recipe.targets = targets;
  recipe.ignore = ignore;
  for (const auto& [pattern, text] : rules) recipe.rules.emplace_back(pattern, Scheme::parse(text));
  return recipe;
}

ProgressCallback report_to(const std::function<void(std::string, std::uint64_t, std::uint64_t)>& progress) {
  if (!progress) return {};
  return [&progress](const TensorProgress& step) {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    progress(step.name, step.bytes_done, step.bytes_total);
  };
}

namespace {

void add_special(nb::dict& fields, const SpecialValues& values) {
  fields["nan"] = values.nans;
  fields["infinite"] = values.infinities;
  fields["subnormal"] = values.subnormals;
  fields["constant"] = values.is_constant;
  fields["zero"] = values.is_zero;
}

}  // namespace

nb::dict as_dict(const QuantizeReport& report) {
  nb::dict tensors;
  for (const TensorResult& result : report.tensors) {
    nb::dict fields;
    fields["scheme"] = result.scheme.to_string();
    fields["sqnr_db"] = result.error.sqnr_db;
    fields["rms"] = result.error.rms;
    fields["max_absolute"] = result.error.max_absolute;
    fields["clipped"] = result.clipped;
    add_special(fields, result.source);
    tensors[nb::str(result.name.c_str())] = fields;
  }
  nb::dict fields;
  fields["tensors"] = tensors;
  nb::dict kept;
  for (const KeptTensor& tensor : report.kept) {
    nb::dict values;
    add_special(values, tensor.source);
    kept[nb::str(tensor.name.c_str())] = values;
  }
  fields["kept"] = kept;
  fields["bytes_before"] = report.plan.bytes_before;
  fields["bytes_after"] = report.plan.bytes_after;
  fields["bits_per_weight"] = report.plan.bits_per_weight;
  fields["sqnr_db"] = report.sqnr_db;
  fields["seconds"] = report.seconds;
  return fields;
}

}  // namespace narrow::python
