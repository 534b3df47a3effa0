/// narrow convert: a quantized checkpoint in the form that another runtime loads.

#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "interop_report.h"
#include "narrow/interop.h"

namespace narrow::command {
namespace {

struct ConvertOptions {
  std::string input, output, target;
};

void run_convert(Context& context, const ConvertOptions& options) {
  const Ecosystem target = parse_ecosystem(options.target);
  catch_interrupts();
  InteropReport report;
  {
    report::Progress progress(stderr, context.progress_mode(), context.err, "convert", 0);
    report = convert_checkpoint(options.input, options.output, target, [&](const TensorProgress& tensor) {
      throw_if_interrupted();
      progress.update(tensor.name, tensor.stage == Stage::kVerified ? "verified" : "written", tensor.bytes_done, tensor.bytes_total);
    });
  }
  print_interop_report(context, options.input, options.output, report, Proof::kShown);
}

}  // namespace

void add_convert(CLI::App& app, Context& context) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = add_command(app, "convert", "Write a quantized checkpoint in another ecosystem's form",
                                  "  narrow convert gptq-model/ ct-model/ --to ct\n\n"
                                  "Each weight keeps its codes where the target has a place for them; where it has not, the weight\n"
                                  "is quantized again and its error is told. OUT appears when it is complete and read back.\n");
  command->add_option("IN", options->input, "A checkpoint of narrow, compressed-tensors, GPTQ, AWQ, or with fp8 blocks")->type_name("")->required();
  command->add_option("OUT", options->output, "The directory to write; it must not exist, or be empty")->type_name("")->required();
  command->add_option("--to", options->target, "narrow, ct, gptq, awq, fp8-block")->type_name("FORM")->required();
  command->callback([&context, options] { context.run = [&context, options] { run_convert(context, *options); }; });
}

}  // namespace narrow::command
