#include "interop_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "report/json.h"
#include "report/numbers.h"
#include "report/table.h"
#include "special_report.h"

namespace narrow::command {
namespace {

constexpr std::size_t kWorstShown = 5;

}  // namespace

void print_interop_report(Context& context, const std::string& input, const std::string& output, const InteropReport& report, Proof proof) {
  using report::Align;
  report::Json tensors = report::Json::array();
  std::int64_t exact = 0;
  for (const TensorProof& tensor : report.tensors) {
    report::Json object{{"name", tensor.name}, {"scheme", tensor.scheme.to_string()}, {"exact", tensor.is_exact}};
    object.update(report::error_object(tensor.error));
    object.update(special_object(tensor.source));
    tensors.push_back(std::move(object));
    exact += tensor.is_exact ? 1 : 0;
  }
  context.answer({{"input", input},
                  {"output", output},
                  {"form", std::string(name_of(report.target))},
                  {"quantized", report.tensors.size()},
                  {"exact", exact},
                  {"copied", report.copied},
                  {"kept", kept_objects(report.kept)},
                  {"bytes_before", report.bytes_before},
                  {"bytes_after", report.bytes_after},
                  {"seconds", report.seconds},
                  {"tensors", tensors}});

  std::vector<TensorProof> shown = report.tensors;
  if (proof == Proof::kWorst) {
    std::stable_sort(shown.begin(), shown.end(),
                     [](const TensorProof& a, const TensorProof& b) { return a.error.sqnr_db < b.error.sqnr_db; });
    shown.resize(std::min(shown.size(), kWorstShown));
  }
  report::Table table({{proof == Proof::kShown ? "weights" : "worst tensors", Align::kLeft, true},
                       {"scheme"},
                       {proof == Proof::kShown ? "codes" : "SQNR", Align::kRight}});
  for (const TensorProof& tensor : shown)
    table.add({tensor.name, tensor.scheme.to_string(),
               tensor.is_exact          ? std::string("code-exact")
               : proof == Proof::kShown ? fmt::format("requantized, {}", report::decibel_text(tensor.error.sqnr_db))
                                        : report::decibel_text(tensor.error.sqnr_db)});
  if (table.row_count() > 0) context.print(table.render(context.out) + "\n");
  for (const TensorProof& tensor : report.tensors) print_special(context, tensor.name, tensor.source);
  for (const KeptTensor& tensor : report.kept) print_kept(context, tensor);
  context.print(fmt::format("{}  {} weights as {}{}, {} other tensors as they are\n",
                            report::painted(context.out, report::Paint::kGood, output), report.tensors.size(), name_of(report.target),
                            proof == Proof::kShown ? fmt::format(", {} of them code-exact", exact) : std::string(), report.copied));
  context.print(fmt::format("{} -> {}, written and read back in {}\n", report::bytes_text(report.bytes_before),
                            report::bytes_text(report.bytes_after), report::duration_text(report.seconds)));
}

std::optional<std::string> gguf_type(const std::string& form) {
  constexpr std::string_view kGguf = "gguf";
  if (form == kGguf) return "";
  return form.starts_with("gguf:") ? std::optional(form.substr(kGguf.size() + 1)) : std::nullopt;
}

void print_gguf_report(Context& context, const std::string& input, const std::string& output, const std::string& form,
                       const GgufReport& report) {
  report::Json tensors = report::Json::array();
  report::Table table({{"tensors", report::Align::kLeft, true}, {"type"}, {"codes", report::Align::kRight}});
  for (const GgufTensorReport& tensor : report.tensors) {
    report::Json object{{"name", tensor.name}, {"type", tensor.type}, {"exact", tensor.is_exact}};
    object.update(report::error_object(tensor.error));
    tensors.push_back(std::move(object));
    table.add({tensor.name, tensor.type, tensor.is_exact ? std::string("code-exact") : report::decibel_text(tensor.error.sqnr_db)});
  }
  context.answer(
      {{"input", input}, {"output", output}, {"form", form}, {"bytes", report.bytes}, {"seconds", report.seconds}, {"tensors", tensors}});
  context.print(table.render(context.out) + "\n");
  context.print(fmt::format("{}  {} tensors, {}, written and read back in {}\n", report::painted(context.out, report::Paint::kGood, output),
                            report.tensors.size(), report::bytes_text(report.bytes), report::duration_text(report.seconds)));
}

}  // namespace narrow::command
