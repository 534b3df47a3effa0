/// narrow dequantize: a quantized checkpoint back to a plain one.

#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "narrow/error.h"
#include "narrow/recipe.h"
#include "report/numbers.h"

namespace narrow::command {
namespace {

struct DequantizeOptions {
  std::string input, output, dtype = "bf16";
};

DType parse_float_type(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "fp16") return DType::kF16;
  if (name == "bf16") return DType::kBf16;
  throw InvalidArgument(fmt::format("--dtype '{}' is none of fp32, bf16, fp16", name));
}

void run_dequantize(Context& context, const DequantizeOptions& options) {
  const DType dtype = parse_float_type(options.dtype);
  const auto tensors = static_cast<std::int64_t>(open_checkpoint(options.input).names().size());
  catch_interrupts();
  double seconds = 0.0;
  {
    report::Progress progress(stderr, context.progress_mode(), context.err, "dequantize", tensors);
    dequantize_checkpoint(options.input, options.output, dtype, [&](const TensorProgress& tensor) {
      throw_if_interrupted();
      progress.update(tensor.name, tensor.quantized ? options.dtype : "as it is", tensor.bytes_done, tensor.bytes_total);
    });
    seconds = progress.seconds();
  }
  std::uint64_t bytes = 0;
  const Checkpoint written = open_checkpoint(options.output);
  for (const TensorInfo& tensor : written.stored()) bytes += tensor.byte_size();
  context.answer(report::Json{{"input", options.input},
                              {"output", options.output},
                              {"dtype", options.dtype},
                              {"tensors", written.stored().size()},
                              {"bytes", bytes},
                              {"seconds", seconds}});
  context.print(fmt::format("{}  {} tensors, {} in {}, {}\n", report::painted(context.out, report::Paint::kGood, options.output),
                            written.stored().size(), report::bytes_text(bytes), options.dtype, report::duration_text(seconds)));
}

}  // namespace

void add_dequantize(CLI::App& app, Context& context) {
  auto options = std::make_shared<DequantizeOptions>();
  CLI::App* command = add_command(app, "dequantize", "Turn a quantized checkpoint back into a plain one",
                                  "  narrow dequantize small/ plain/ --dtype bf16\n");
  command->add_option("IN", options->input, "A directory written by `narrow quantize`")->type_name("")->required();
  command->add_option("OUT", options->output, "The directory to write; it must not exist, or be empty")->type_name("")->required();
  command->add_option("--dtype", options->dtype, "fp32, bf16 (default) or fp16")->option_text("TYPE");
  command->callback([&context, options] { context.run = [&context, options] { run_dequantize(context, *options); }; });
}

}  // namespace narrow::command
