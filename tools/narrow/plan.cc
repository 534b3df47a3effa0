/// narrow plan: what quantizing would give, computed from the headers alone.

#include "plan.h"

#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "recipe_options.h"
#include "report/numbers.h"
#include "report/table.h"

namespace narrow::command {

using report::Align;
using report::Json;
using report::Paint;

Json plan_object(const Plan& plan) {
  Json tensors = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool quantized = tensor.fate == Fate::kQuantize;
    tensors.push_back({{"name", tensor.name},
                       {"fate", quantized ? "quantize" : "copy"},
                       {"scheme", quantized ? Json(tensor.scheme.to_string()) : Json(nullptr)},
                       {"reason", tensor.reason},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes_before", tensor.bytes_before},
                       {"bytes_after", tensor.bytes_after}});
  }
  return {{"bytes_before", plan.bytes_before},
          {"bytes_after", plan.bytes_after},
          {"file_bytes", plan.file_bytes},
          {"bits_per_weight", plan.bits_per_weight},
          {"peak_memory", plan.peak_memory},
          {"free_disk", plan.free_disk},
          {"tensors", tensors}};
}

namespace {

struct PlanOptions {
  std::string input, output;
  RecipeOptions recipe;
};

std::string plan_table(const report::Style& style, const Plan& plan) {
  report::Table table({{"tensor", Align::kLeft, true},
                       {"shape"},
                       {"from"},
                       {"to"},
                       {"before", Align::kRight},
                       {"after", Align::kRight},
                       {"why", Align::kLeft, false, true}});
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool quantized = tensor.fate == Fate::kQuantize;
    table.add({tensor.name,
               to_string(tensor.shape),
               std::string(name_of(tensor.dtype)),
               {quantized ? tensor.scheme.to_string() : "as it is", quantized ? Paint::kAccent : Paint::kDim},
               report::bytes_text(tensor.bytes_before),
               report::bytes_text(tensor.bytes_after),
               {tensor.reason, Paint::kDim}});
  }
  return table.render(style);
}

void run_plan(Context& context, const CLI::App& command, const PlanOptions& options) {
  const Recipe recipe = make_recipe(command, options.recipe);
  const Checkpoint input = open_checkpoint(options.input);
  const std::filesystem::path place =
      options.output.empty() ? std::filesystem::absolute(options.input) : std::filesystem::path(options.output);
  const Plan plan = plan_quantize(input, recipe, place);
  Json object{{"input", options.input}, {"scheme", recipe.scheme.to_string()}};
  object.update(plan_object(plan));
  object["idle"] = idle_patterns(plan, recipe);
  for (const std::string& idle : idle_patterns(plan, recipe)) context.warn(idle);
  context.answer(object);

  std::int64_t quantized = 0;
  for (const PlannedTensor& tensor : plan.tensors) quantized += tensor.fate == Fate::kQuantize ? 1 : 0;
  const double ratio = plan.bytes_after > 0 ? static_cast<double>(plan.bytes_before) / static_cast<double>(plan.bytes_after) : 1.0;
  context.print(plan_table(context.out, plan));
  context.print(
      fmt::format("\n{} of {} tensors quantized at {:.3f} bits per weight\n", quantized, plan.tensors.size(), plan.bits_per_weight));
  context.print(fmt::format("{} -> {} of tensors ({:.2f} times smaller), {} bytes in files\n", report::bytes_text(plan.bytes_before),
                            report::bytes_text(plan.bytes_after), ratio, report::count_text(static_cast<std::int64_t>(plan.file_bytes))));
  const bool fits = plan.file_bytes <= plan.free_disk;
  context.print(fmt::format("memory {} at the largest tensor, disk {}\n", report::bytes_text(plan.peak_memory),
                            report::painted(context.out, fits ? Paint::kPlain : Paint::kBad,
                                            fmt::format("{} free{}", report::bytes_text(plan.free_disk), fits ? "" : ": not enough"))));
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      add_command(app, "plan", "Show what quantize would do and give, before any work",
                  "  narrow plan model/ int4:block128\n  narrow plan model/ int4:block128 --rule 're:.*down_proj=int8:row'\n");
  command->add_option("IN", options->input, "A safetensors file or a directory")->type_name("")->required();
  add_recipe_options(*command, context, options->recipe);
  command->add_option("--output", options->output, "Where it would go, for the free disk (default: beside IN)")->option_text("DIR");
  command->callback(
      [&context, command, options] { context.run = [&context, command, options] { run_plan(context, *command, *options); }; });
}

}  // namespace narrow::command
