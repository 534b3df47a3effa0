#include "special_report.h"

#include <fmt/format.h>

#include "io/text.h"

namespace narrow::command {
namespace {

std::string counts_text(const SpecialValues& values) { return fmt::format("{} NaN, {} infinite", values.nans, values.infinities); }

}  // namespace

report::Json special_object(const SpecialValues& values) {
  return {{"nan", values.nans},
          {"infinite", values.infinities},
          {"subnormal", values.subnormals},
          {"constant", values.is_constant},
          {"zero", values.is_zero}};
}

report::Json kept_objects(const std::vector<KeptTensor>& tensors) {
  report::Json objects = report::Json::array();
  for (const KeptTensor& tensor : tensors) {
    report::Json object{{"name", tensor.name}};
    object.update(special_object(tensor.source));
    objects.push_back(std::move(object));
  }
  return objects;
}

void print_special(Context& context, const std::string& name, const SpecialValues& values) {
  if (!values.all_finite()) context.print(fmt::format("{}: {} in its source\n", io::in_quotes(name), counts_text(values)));
  if (values.is_zero) context.print(fmt::format("{}: all zeros\n", io::in_quotes(name)));
}

void print_kept(Context& context, const KeptTensor& tensor) {
  context.print(fmt::format("{}: {}, kept as it is\n", io::in_quotes(tensor.name), counts_text(tensor.source)));
}

}  // namespace narrow::command
