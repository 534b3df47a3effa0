/// narrow generate: text from a model, as it is made.

#include <cstdio>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "commands.h"
#include "io/text.h"
#include "model_options.h"
#include "narrow/error.h"
#include "narrow/generate.h"
#include "narrow/tokenizer.h"
#include "report/evaluation.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Json;

struct GenerateCommandOptions {
  std::string model, prompt;
  GenerateOptions generate;
  SchemeOptions scheme;
};

/// Writes bytes as soon as they are whole characters.
class Stream {
 public:
  explicit Stream(bool enabled) : enabled_(enabled) {}
  void add(std::string_view bytes) {
    pending_ += bytes;
    std::size_t whole = pending_.size();
    while (whole > 0 && pending_.size() - whole < 4 && !io::is_utf8(std::string_view(pending_).substr(0, whole))) --whole;
    if (!io::is_utf8(std::string_view(pending_).substr(0, whole)))
      whole = pending_.size() > 8 ? pending_.size() : 0;  // bytes that are no text
    write(whole);
  }
  void finish() {
    write(pending_.size());
    if (enabled_) std::fputc('\n', stdout);
  }

 private:
  void write(std::size_t count) {
    if (enabled_) {
      std::fwrite(pending_.data(), 1, count, stdout);
      std::fflush(stdout);
    }
    pending_.erase(0, count);
  }
  bool enabled_;
  std::string pending_;
};

void run_generate(Context& context, GenerateCommandOptions& options) {
  const Tokenizer tokenizer = open_tokenizer(options.model);
  const Model model = open_model(options.model, make_model_options(options.scheme));
  std::vector<std::int32_t> prompt = tokenizer.encode(options.prompt, true);
  if (prompt.empty()) prompt.push_back(static_cast<std::int32_t>(model.config().bos.value_or(0)));
  options.generate.cache = KvCache::parse_scheme(options.scheme.cache);
  catch_interrupts();
  Stream stream(!context.json && !context.quiet);
  bool begun = false;
  const Generation result = generate(model, prompt, options.generate, [&](std::int32_t token) {
    throw_if_interrupted();
    if (!std::exchange(begun, true)) stream.add(options.prompt);  // what generate refuses is said before anything is shown
    stream.add(tokenizer.bytes(token));
    return true;
  });
  if (!begun) stream.add(options.prompt);
  stream.finish();
  const double made = static_cast<double>(result.tokens.size());
  const double rate = result.seconds > 0.0 && made > 1.0 ? (made - 1.0) / result.seconds : 0.0;
  const double prompt_rate = static_cast<double>(prompt.size()) / result.prompt_seconds;
  Json answer{{"model", options.model}};
  answer.update(report::model_object(model));
  answer.update(Json{{"prompt", options.prompt},
                     {"text", tokenizer.decode(result.tokens)},
                     {"prompt_tokens", prompt},
                     {"tokens", result.tokens},
                     {"ended", result.ended},
                     {"prompt_tokens_per_second", prompt_rate},
                     {"tokens_per_second", rate},
                     {"seconds", result.prompt_seconds + result.seconds}});
  context.answer(answer);
  if (!context.json && !context.quiet)
    std::fputs(fmt::format("{}\n",
                           report::painted(
                               context.err, report::Paint::kDim,
                               fmt::format("{} token{} read at {:.0f} per second, {} made at {:.1f} per second; {}, {:.2f} bits per weight",
                                           prompt.size(), prompt.size() == 1 ? "" : "s", prompt_rate, result.tokens.size(), rate,
                                           report::weights_text(model), model.bits_per_weight())))
                   .c_str(),
               stderr);
}

}  // namespace

void add_generate(CLI::App& app, Context& context) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CLI::App* command = add_command(app, "generate", "Continue a text with a model, as it is made",
                                  "  narrow generate model/ -p \"To install the package, run\"\n"
                                  "  narrow generate small/ -p \"The function returns\" --temperature 0.8 --top-p 0.95 --seed 7\n"
                                  "  narrow generate model/ -p \"The function returns\" --device cuda --kv-cache fp16\n");
  command->add_option("MODEL", options->model, "A Hugging Face directory, plain or quantized by narrow")->type_name("")->required();
  command->add_option("-p,--prompt", options->prompt, "The text to continue")->option_text("TEXT")->required();
  command->add_option("-n,--max-tokens", options->generate.tokens, "At most N tokens (default 128)")
      ->option_text("N")
      ->check(number_from(1, 1 << 24));
  command->add_option("--temperature", options->generate.sampling.temperature, "0 (default): the most likely token; 1: as the model says")
      ->option_text("T");
  command->add_option("--top-k", options->generate.sampling.top_k, "Draw from the K most likely tokens")->option_text("K");
  command->add_option("--top-p", options->generate.sampling.top_p, "Draw from the fewest tokens that hold P of the probability")
      ->option_text("P");
  command->add_option("--seed", options->generate.sampling.seed, "Another text of the same distribution (default 0)")->option_text("N");
  add_scheme_options(*command, options->scheme);
  command->callback([&context, options] { context.run = [&context, options] { run_generate(context, *options); }; });
}

}  // namespace narrow::command
