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

/// The form of another ecosystem that a sound checkpoint has; empty for any other, also where narrow does not read the method.
std::string foreign_form(const std::string& path) {
  try {
    const std::optional<Ecosystem> ecosystem = ecosystem_of(open_checkpoint(path));
    return ecosystem && *ecosystem != Ecosystem::kNarrow ? std::string(name_of(*ecosystem)) : "";
  } catch (const Unsupported&) {
    return "";
  }
}

void run_verify(Context& context, const std::string& path, std::string form) {
  VerifyReport report;
  try {
    if (form.empty() && is_gguf(path)) form = "gguf";
    if (form.empty()) {
      report = verify_checkpoint(path);
      if (report.problems.empty()) form = foreign_form(path);
    }
    if (!form.empty()) report = form == "gguf" ? verify_gguf(path) : verify_as(path, parse_ecosystem(form));
  } catch (const CorruptFile& error) {  // a checkpoint that cannot be opened is damage too
    report.problems.emplace_back(error.what());
  }
  context.answer(report::Json{{"path", path},
                              {"ok", report.problems.empty()},
                              {"hashes", report.has_hashes},
                              {"tensors", report.tensors},
                              {"bytes", report.bytes},
                              {"problems", report.problems}});
  if (report.problems.empty()) {
    context.print(fmt::format("{}  {}: {} tensors, {}, {}\n", report::painted(context.out, report::Paint::kGood, "ok"), path,
                              report.tensors, report::bytes_text(static_cast<std::uint64_t>(report.bytes)),
                              report.has_hashes ? "every hash is right"
                              : form.empty()    ? "the structure is right (it has no hashes)"
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
  command
      ->add_option(
          "--as", *form,
          "Read every weight in this form, not in the one that config.json names: narrow, ct, gptq, awq, fp8-block, modelopt, bnb, gguf")
      ->type_name("FORM");
  command->callback([&context, path, form] { context.run = [&context, path, form] { run_verify(context, *path, *form); }; });
}

}  // namespace narrow::command
