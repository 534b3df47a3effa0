/// narrow eval: perplexity of a model, and how far it is from its base.

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "model_options.h"
#include "narrow/error.h"
#include "report/evaluation.h"
#include "report/numbers.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Json;

struct EvalOptions {
  std::string model, base, logits;
  SchemeOptions scheme;
  TokenOptions tokens;
};

/// Collects logits and writes them as one tensor [tokens, vocabulary], windows one after the other.
class LogitsFile {
 public:
  explicit LogitsFile(std::string path) : path_(std::move(path)) {}
  void add(const Tensor& logits) {
    vocabulary_ = logits.shape().back();
    values_.insert(values_.end(), logits.as<float>(), logits.as<float>() + logits.size());
  }
  void write() const {
    const std::int64_t rows = static_cast<std::int64_t>(values_.size()) / std::max<std::int64_t>(1, vocabulary_);
    write_safetensors(path_, {{"logits", Tensor::borrow(values_.data(), DType::kF32, {rows, vocabulary_})}});
  }

 private:
  std::string path_;
  std::vector<float> values_;
  std::int64_t vocabulary_ = 0;
};

void run_eval(Context& context, const EvalOptions& options) {
  const LoadedTokens loaded = load_tokens(options.tokens, options.model);
  const TokenWindows& windows = loaded.windows;
  const Model model = open_model(options.model, make_model_options(options.scheme));
  std::optional<Model> base;
  if (!options.base.empty()) {
    const ModelOptions same = make_model_options(options.scheme);
    base = open_model(options.base, {.compute = same.compute, .device = same.device});
  }
  if (!options.logits.empty()) check_output_file(options.logits);
  catch_interrupts();
  EvaluateOptions how;
  how.base = base ? &*base : nullptr;
  how.cache = KvCache::parse_scheme(options.scheme.cache);
  LogitsFile logits(options.logits);
  if (!options.logits.empty()) how.logits = [&](const Tensor& batch) { logits.add(batch); };
  Evaluation result;
  {
    const auto mode = context.err_is_terminal ? context.progress_mode() : report::ProgressMode::kNone;
    report::Progress progress(stderr, mode, context.err, "eval", static_cast<std::int64_t>(windows.size()), report::ProgressUnit::kSteps);
    how.progress = [&](std::int64_t done, std::int64_t count, double nll) {
      throw_if_interrupted();
      progress.update(fmt::format("perplexity {:.4f}", std::exp(nll)), "", static_cast<std::uint64_t>(done),
                      static_cast<std::uint64_t>(count));
    };
    result = evaluate(model, windows, how);
  }
  if (!options.logits.empty()) logits.write();
  Json answer{{"model", options.model}, {"base", options.base.empty() ? Json(nullptr) : Json(options.base)}};
  answer.update(report::model_object(model));
  answer.update(report::evaluation_object(result, loaded.scored_bytes));
  context.answer(answer);
  context.print(report::evaluation_text(context.out, model, result, loaded.scored_bytes));
}

}  // namespace

void add_eval(CLI::App& app, Context& context) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = add_command(app, "eval", "Perplexity of a model, and its KL divergence from a base model",
                                  "  narrow eval small/ --tokens docs_tokens.safetensors --base model/\n"
                                  "  narrow eval model/ --text book.txt\n"
                                  "  narrow eval model/ --tokens docs_tokens.safetensors --scheme int8:row --activations int8:row:dynamic\n"
                                  "  narrow eval model/ --tokens docs_tokens.safetensors --device cuda\n\n"
                                  "Each window is read on its own; its tokens 1 .. length-1 are scored.\n");
  command->add_option("MODEL", options->model, "A Hugging Face directory, plain or quantized by narrow")->type_name("")->required();
  command->add_option("--base", options->base, "The model to compare with, as it is")->option_text("MODEL");
  add_token_options(*command, options->tokens, "eval");
  command->add_option("--logits", options->logits, "Write the logits of every token read, fp32, as a safetensors file")
      ->option_text("FILE");
  add_scheme_options(*command, options->scheme);
  command->callback([&context, options] { context.run = [&context, options] { run_eval(context, *options); }; });
}

}  // namespace narrow::command
