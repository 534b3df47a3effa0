/// Completions for three shells: commands, options, and files where a value is wanted.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_pages.h"

namespace narrow::command {
namespace {

std::vector<std::string> option_names(const CommandPage& page) {
  std::vector<std::string> names;
  for (const OptionEntry& option : page.options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

std::vector<std::string> command_names(const CommandPages& pages) {
  std::vector<std::string> names;
  for (const CommandPage& page : pages.commands) names.push_back(page.name);
  return names;
}

/// Text inside single quotes of a shell; `also` are further letters that a backslash must stand before.
std::string quoted(std::string_view text, std::string_view also = "") {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'')
      result += "'\\''";
    else if (also.find(letter) != std::string_view::npos)
      result += fmt::format("\\{}", letter);
    else
      result += letter;
  }
  return result;
}

/// In fish backslashes and quotes are escaped inside of single quotes.
std::string fish_quoted(std::string_view text) {
  std::string result;
  for (const char letter : text) result += letter == '\'' || letter == '\\' ? fmt::format("\\{}", letter) : std::string(1, letter);
  return result;
}

}  // namespace

std::string bash_completion(const CommandPages& pages) {
  std::string cases;
  for (const CommandPage& page : pages.commands)
    cases += fmt::format("    {}) options='{}' ;;\n", page.name, fmt::join(option_names(page), " "));
  return fmt::format(R"(# Completions of narrow for bash. Made by `narrow completion bash`.
_narrow() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command= options= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in
      {}) command=${{COMP_WORDS[i]}}; break ;;
    esac
  done
  case $command in
{}  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options {}" -- "$word")
  elif [[ -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{}' -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _narrow narrow
)",
                     fmt::join(command_names(pages), "|"), cases, fmt::join(option_names(pages.program), " "),
                     fmt::join(command_names(pages), " "));
}

std::string zsh_completion(const CommandPages& pages) {
  const auto specifications = [](const CommandPage& page) {
    std::string text;
    for (const OptionEntry& option : page.options)
      for (const std::string& name : option.names)
        text += fmt::format(" \\\n        '{}[{}]{}'", name, quoted(option.text, "[]:"),
                            option.value.empty() ? "" : fmt::format(":{}:_files", quoted(option.value, "[]:")));
    return text;
  };
  std::string commands, cases;
  for (const CommandPage& page : pages.commands) {
    commands += fmt::format("    '{}:{}'\n", page.name, quoted(page.sentence, ":"));
    cases += fmt::format("      {}) _arguments{}{} \\\n        '*:file:_files' ;;\n", page.name, specifications(page),
                         specifications(pages.program));
  }
  return fmt::format(R"(#compdef narrow
# Completions of narrow for zsh. Made by `narrow completion zsh`.
_narrow() {{
  local -a commands=(
{})
  local state
  _arguments -C{} \
        '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument) case $words[1] in
{}    esac ;;
  esac
}}
_narrow "$@"
)",
                     commands, specifications(pages.program), cases);
}

std::string fish_completion(const CommandPages& pages) {
  std::string text = "# Completions of narrow for fish. Made by `narrow completion fish`.\n";
  const auto add_options = [&](const CommandPage& page, const std::string& condition) {
    for (const OptionEntry& option : page.options) {
      std::string names;
      for (const std::string& name : option.names) names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      text +=
          fmt::format("complete -c narrow{}{}{} -d '{}'\n", condition, names, option.value.empty() ? "" : " -r", fish_quoted(option.text));
    }
  };
  add_options(pages.program, "");
  for (const CommandPage& page : pages.commands)
    text += fmt::format("complete -c narrow -n __fish_use_subcommand -a {} -d '{}'\n", page.name, fish_quoted(page.sentence));
  for (const CommandPage& page : pages.commands) add_options(page, fmt::format(" -n '__fish_seen_subcommand_from {}'", page.name));
  return text;
}

}  // namespace narrow::command
