/// narrow verify: every byte read again, every hash checked.

#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"
#include "narrow/interop.h"
#include "report/numbers.h"

namespace narrow::command {
namespace {

void run_verify(Context& context, const std::string& path, const std::string& form) {
  VerifyReport report;
  bool hashed = false;
  try {
    const bool gguf = form == "gguf" || (form.empty() && is_gguf(path));
    report = gguf ? verify_gguf(path) : form.empty() ? verify_checkpoint(path) : verify_as(path, parse_ecosystem(form));
    if (report.problems.empty() && !gguf) hashed = open_checkpoint(path).is_quantized();
  } catch (const CorruptFile& error) {  // a checkpoint that cannot be opened is damage too
    report.problems.emplace_back(error.what());
  }
  context.answer(report::Json{{"path", path},
                              {"ok", report.problems.empty()},
                              {"hashes", hashed},
                              {"tensors", report.tensors},
                              {"bytes", report.bytes},
                              {"problems", report.problems}});
  if (report.problems.empty()) {
    context.print(fmt::format("{}  {}: {} tensors, {}, {}\n", report::painted(context.out, report::Paint::kGood, "ok"), path,
                              report.tensors, report::bytes_text(static_cast<std::uint64_t>(report.bytes)),
                              hashed         ? "every hash is right"
                              : form.empty() ? "the structure is right (a plain checkpoint has no hashes)"
                                             : "every weight reads as " + form));
    return;
  }
  for (const std::string& problem : report.problems)
    context.print(fmt::format("{}  {}\n", report::painted(context.out, report::Paint::kBad, "damaged"), problem));
  context.exit_code = kCheckFailed;
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>(), form = std::make_shared<std::string>();
  CLI::App* command = add_command(app, "verify", "Check a checkpoint: its structure and every hash", "  narrow verify small/\n");
  command->add_option("PATH", *path, "A checkpoint, plain or quantized")->type_name("")->required();
  command->add_option("--as", *form, "Read every weight in this form too: narrow, ct, gptq, awq, fp8-block, modelopt, bnb, gguf")
      ->type_name("FORM");
  command->callback([&context, path, form] { context.run = [&context, path, form] { run_verify(context, *path, *form); }; });
}

}  // namespace narrow::command
