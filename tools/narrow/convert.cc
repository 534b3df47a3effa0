/// narrow convert: a quantized checkpoint in the form that another runtime loads.

#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "interop_report.h"
#include "narrow/interop.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/table.h"

namespace narrow::command {
namespace {

struct ConvertOptions {
  std::string input, output, target;
};

void run_gguf(Context& context, const ConvertOptions& options, const std::string& type) {
  catch_interrupts();
  GgufReport report;
  {
    report::Progress progress(stderr, context.progress_mode(), context.err, "convert", 0);
    report = export_gguf(options.input, options.output, type, [&](const TensorProgress& tensor) {
      throw_if_interrupted();
      progress.update(tensor.name, tensor.stage == Stage::kVerified ? "verified" : "written", tensor.bytes_done, tensor.bytes_total);
    });
  }
  print_gguf_report(context, options.input, options.output, options.target, report);
}

void run_convert(Context& context, const ConvertOptions& options) {
  if (const std::optional<std::string> type = gguf_type(options.target)) return run_gguf(context, options, *type);
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
                                  "  narrow convert gptq-model/ ct-model/ --to ct\n"
                                  "  narrow convert llama/ llama.gguf --to gguf:q4_k\n"
                                  "  narrow convert llama.gguf own/ --to narrow\n\n"
                                  "Each weight keeps its codes where the target has a place for them; where it has not, the weight\n"
                                  "is quantized again and its error is told. OUT appears when it is complete and read back.\n");
  command
      ->add_option("IN", options->input,
                   "A checkpoint of narrow, compressed-tensors, GPTQ, AWQ, ModelOpt, bitsandbytes, with fp8 blocks, or a GGUF file; for\n"
                   "gguf also a plain one")
      ->type_name("")
      ->required();
  command->add_option("OUT", options->output, "The directory (for gguf the file) to write; it must not be there")
      ->type_name("")
      ->required();
  command
      ->add_option("--to", options->target,
                   "narrow, ct, gptq, awq, fp8-block, modelopt, or gguf[:TYPE] with a type of ggml such as q8_0, q4_0, q4_k, mxfp4;\n"
                   "without TYPE the one that holds the weights' codes, or q8_0")
      ->type_name("FORM")
      ->required();
  command->callback([&context, options] { context.run = [&context, options] { run_convert(context, *options); }; });
}

}  // namespace narrow::command
