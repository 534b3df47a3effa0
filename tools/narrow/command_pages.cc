#include "command_pages.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "build_facts.h"

namespace narrow::command {
namespace {

constexpr std::string_view kExampleTitle = "Example:\n";

OptionEntry entry_of(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  if (entry.names.empty()) entry.names.push_back(option.get_name(true));
  const bool is_flag = option.get_expected_max() == 0 || option.get_type_size_max() == 0;
  if (!option.get_positional() && !is_flag) {
    entry.value = option.get_option_text().empty() ? option.get_type_name() : option.get_option_text();
    if (entry.value.empty()) entry.value = "VALUE";
  }
  entry.text = option.get_description();
  std::replace(entry.text.begin(), entry.text.end(), '\n', ' ');  // help breaks its lines itself
  entry.required = option.get_required();
  entry.repeats = !is_flag && option.get_items_expected_max() > 1;
  return entry;
}

CommandPage page_of(const CLI::App& app) {
  CommandPage page;
  page.name = app.get_parent() == nullptr ? "" : app.get_name();
  page.sentence = app.get_description();
  while (!page.sentence.empty() && page.sentence.back() == '\n') page.sentence.pop_back();
  if (page.sentence.ends_with('.')) page.sentence.pop_back();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    (option->get_positional() ? page.arguments : page.options).push_back(entry_of(*option));
  }
  // The footer of add_command: "Example:", the lines, a blank line, the options of every command.
  const std::string footer = app.get_footer();
  if (const std::size_t begin = footer.find(kExampleTitle); begin != std::string::npos) {
    const std::size_t first = begin + kExampleTitle.size();
    page.example = footer.substr(first, footer.find("\n\n", first) - first);
  }
  return page;
}

/// Roff takes a leading dot or quote for a request and a hyphen for one that may be broken.
std::string roff(std::string_view text) {
  std::string result;
  bool at_begin = true;
  for (const char letter : text) {
    if (at_begin && (letter == '.' || letter == '\'')) result += "\\&";
    if (letter == '\\')
      result += "\\e";
    else if (letter == '-')
      result += "\\-";
    else
      result += letter;
    at_begin = letter == '\n';
  }
  return result;
}

std::string upper(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

std::string roff_entry(const OptionEntry& entry) {
  std::string names;
  for (const std::string& name : entry.names) names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
  return fmt::format(".TP\n{}{}\n{}{}.\n", names, entry.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(entry.value)),
                     roff(entry.text), entry.required ? "; required" : "");
}

std::string roff_section(const char* title, const std::vector<OptionEntry>& entries) {
  if (entries.empty()) return "";
  std::string text = fmt::format(".SH {}\n", title);
  for (const OptionEntry& entry : entries) text += roff_entry(entry);
  return text;
}

/// A cell of a table: a bar would end it.
std::string cell(std::string_view text) {
  std::string result;
  for (const char letter : text) result += letter == '|' ? "\\|" : std::string(1, letter);
  return result;
}

/// The lines of an example, which help indents by two.
std::string without_indent(std::string text) {
  if (text.starts_with("  ")) text.erase(0, 2);
  for (std::size_t at = text.find("\n  "); at != std::string::npos; at = text.find("\n  ", at)) text.erase(at + 1, 2);
  return text;
}

std::string markdown_table(const char* title, const std::vector<OptionEntry>& entries) {
  if (entries.empty()) return "";
  std::string text = fmt::format("\n| {} | meaning |\n|---|---|\n", title);
  for (const OptionEntry& entry : entries)
    text += fmt::format("| `{}{}` | {}{} |\n", fmt::join(entry.names, "`, `"), entry.value.empty() ? "" : " " + cell(entry.value),
                        cell(entry.text), entry.required ? "; required" : "");
  return text;
}

}  // namespace

std::string CommandPage::usage() const {
  if (name.empty()) return "narrow [options] COMMAND ...";
  std::string text = "narrow " + name;
  for (const OptionEntry& argument : arguments)
    text += argument.required ? " " + argument.names.front() : fmt::format(" [{}]", argument.names.front());
  for (const OptionEntry& option : options)
    if (option.required) text += fmt::format(" {} {}", option.names.back(), option.value);
  return text + " [options]";
}

CommandPages describe(const CLI::App& app) {
  CommandPages pages;
  pages.program = page_of(app);
  pages.notes = app.get_footer();
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) pages.commands.push_back(page_of(*command));
  offer_values(pages);
  return pages;
}

std::string manual_page(const CommandPages& pages, const CommandPage& page) {
  const bool whole = page.name.empty();
  const std::string name = whole ? "narrow" : "narrow-" + page.name;
  std::string text = fmt::format(".TH {} 1 \"\" \"narrow {}\" \"narrow\"\n.SH NAME\n{} \\- {}\n", roff(upper(name)), build_facts().version,
                                 roff(name), roff(page.sentence));
  text += fmt::format(".SH SYNOPSIS\n.B {}\n", roff(page.usage()));
  text += roff_section("ARGUMENTS", page.arguments) + roff_section("OPTIONS", page.options);
  if (whole) {
    text += ".SH COMMANDS\n";
    for (const CommandPage& command : pages.commands)
      text += fmt::format(".TP\n.BR narrow\\-{} (1)\n{}.\n", roff(command.name), roff(command.sentence));
    text += fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", roff(pages.notes));
  } else {
    text += roff_section("OPTIONS OF EVERY COMMAND", pages.program.options);
    if (!page.example.empty()) text += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", roff(page.example));
    text += ".SH SEE ALSO\n.BR narrow (1)\n";
  }
  return text;
}

std::string markdown_reference(const CommandPages& pages) {
  std::string text =
      "# Every option of the command\n\nMade from the command's own parser (`narrow manual --markdown`); what the commands answer is told "
      "in "
      "[the command](command.md).\n\n## Options of every command\n" +
      markdown_table("option", pages.program.options);
  for (const CommandPage& page : pages.commands) {
    text += fmt::format("\n## narrow {}\n\n{}.\n\n```text\n{}\n```\n", page.name, page.sentence, page.usage());
    text += markdown_table("argument", page.arguments) + markdown_table("option", page.options);
    if (!page.example.empty()) text += fmt::format("\n```text\n{}\n```\n", without_indent(page.example));
  }
  return text;
}

}  // namespace narrow::command
