/// narrow tokenize: a text file to a token file.

#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "model_options.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"
#include "narrow/tokenizer.h"
#include "report/numbers.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Json;

struct TokenizeOptions {
  std::string model, text, output, tensor = "eval";
  std::int64_t length = 0;
};

void run_tokenize(Context& context, const TokenizeOptions& options) {
  if (!options.output.empty()) check_output_file(options.output);
  const Tokenizer tokenizer = open_tokenizer(options.model);
  const std::string text = read_text_file(options.text);
  std::vector<std::int32_t> tokens = tokenizer.encode(text);
  const bool same = tokenizer.decode(tokens) == text;
  const std::int64_t count = static_cast<std::int64_t>(tokens.size()), length = options.length > 0 ? options.length : count,
                     windows = length > 0 ? count / length : 0;
  if (!options.output.empty()) {
    if (windows == 0) throw InvalidArgument(fmt::format("the text has {} tokens, not enough for a window of {}", count, options.length));
    write_safetensors(options.output, {{options.tensor, Tensor::borrow(tokens.data(), DType::kI32, {windows, length})}});
  }
  context.answer({{"model", options.model},
                  {"text", options.text},
                  {"bytes", text.size()},
                  {"tokens", count},
                  {"windows", windows},
                  {"round_trip", same}});
  context.print(fmt::format("{} bytes are {} tokens ({:.2f} bytes each){}\n", report::count_text(static_cast<std::int64_t>(text.size())),
                            report::count_text(count), count > 0 ? static_cast<double>(text.size()) / static_cast<double>(count) : 0.0,
                            same ? "" : "; decoding gives another text: the tokenizer normalizes it"));
  if (!options.output.empty())
    context.print(fmt::format("{}  {} of [{}, {}], {} tokens left out\n",
                              report::painted(context.out, report::Paint::kGood, options.output), options.tensor, windows, length,
                              report::count_text(count - windows * length)));
}

}  // namespace

void add_tokenize(CLI::App& app, Context& context) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = add_command(app, "tokenize", "Turn a text into the tokens of a model",
                                  "  narrow tokenize model/ book.txt -o tokens.safetensors --length 512\n");
  command->add_option("MODEL", options->model, "A directory with tokenizer.json, or that file")->type_name("")->required();
  command->add_option("TEXT", options->text, "A text file in UTF-8")->type_name("")->required();
  command->add_option("-o,--output", options->output, "Write a tensor [windows, length] of int32; a shorter last window is left out")
      ->option_text("FILE");
  command->add_option("--length", options->length, "Tokens of a window (default: one window of all)")
      ->option_text("N")
      ->check(number_from(2, 1 << 30));
  command->add_option("--tensor", options->tensor, "The tensor's name (default: eval)")->option_text("NAME");
  command->callback([&context, options] { context.run = [&context, options] { run_tokenize(context, *options); }; });
}

}  // namespace narrow::command
