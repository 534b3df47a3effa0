/// narrow manual, narrow completion: the command's own pages, made from its parser.

#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/format.h>

#include "command_pages.h"
#include "commands.h"
#include "narrow/error.h"

namespace narrow::command {
namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("{} cannot be written", path.string()));
}

/// Everything that a package installs, under the folders that systems look into.
void write_share(const CommandPages& pages, const std::filesystem::path& share) {
  write_file(share / "man/man1/narrow.1", manual_page(pages, pages.program));
  for (const CommandPage& page : pages.commands)
    write_file(share / fmt::format("man/man1/narrow-{}.1", page.name), manual_page(pages, page));
  write_file(share / "bash-completion/completions/narrow", bash_completion(pages));
  write_file(share / "zsh/site-functions/_narrow", zsh_completion(pages));
  write_file(share / "fish/vendor_completions.d/narrow.fish", fish_completion(pages));
}

/// A text that is the answer itself.
void show(Context& context, const std::string& text) {
  context.answer({{"text", text}});
  context.print(text);
}

void show_manual(Context& context, const CommandPages& pages, const std::string& name, bool markdown, const std::string& share) {
  if (!name.empty() + markdown + !share.empty() > 1) throw InvalidArgument("manual shows one thing: a COMMAND, --markdown, or --write DIR");
  if (!share.empty()) return write_share(pages, share);
  if (markdown) return show(context, markdown_reference(pages));
  if (name.empty()) return show(context, manual_page(pages, pages.program));
  for (const CommandPage& page : pages.commands)
    if (page.name == name) return show(context, manual_page(pages, page));
  throw InvalidArgument(fmt::format("'{}' is not a command; `narrow --help` lists them", name));
}

}  // namespace

void add_manual(CLI::App& app, Context& context) {
  auto name = std::make_shared<std::string>(), share = std::make_shared<std::string>();
  auto markdown = std::make_shared<bool>(false);
  CLI::App* command =
      add_command(app, "manual", "Print the manual page of narrow or of one of its commands", "  narrow manual quantize | man -l -\n");
  command->add_option("COMMAND", *name, "A command; none: narrow itself")->type_name("");
  command->add_flag("--markdown", *markdown, "All commands as one page of Markdown");
  command->add_option("--write", *share, "Write all pages and completions under this folder, as a package installs them in share/")
      ->option_text("DIR");
  command->callback([&app, &context, name, markdown, share] {
    context.run = [&app, &context, name, markdown, share] { show_manual(context, describe(app), *name, *markdown, *share); };
  });
}

void add_completion(CLI::App& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      add_command(app, "completion", "Print completions for a shell: bash, zsh or fish",
                  "  source <(narrow completion bash)\n  narrow completion fish > ~/.config/fish/completions/narrow.fish\n");
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->type_name("")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""));
  command->callback([&app, &context, shell] {
    context.run = [&app, &context, shell] {
      const CommandPages pages = describe(app);
      show(context, *shell == "bash" ? bash_completion(pages) : *shell == "zsh" ? zsh_completion(pages) : fish_completion(pages));
    };
  });
}

}  // namespace narrow::command
