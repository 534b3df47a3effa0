/// Completions for three shells: commands, options, and the values that options and arguments take.

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_pages.h"

namespace narrow::command {
namespace {

using Words = std::vector<std::string>;

Words option_names(const CommandPage& page) {
  Words names;
  for (const OptionEntry& option : page.options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

Words command_names(const CommandPages& pages) {
  Words names;
  for (const CommandPage& page : pages.commands) names.push_back(page.name);
  return names;
}

/// Every page with its options: those of narrow itself, then each command's.
void for_each_option(const CommandPages& pages, const std::function<void(const CommandPage&, const OptionEntry&)>& visit) {
  for (const OptionEntry& option : pages.program.options) visit(pages.program, option);
  for (const CommandPage& page : pages.commands)
    for (const OptionEntry& option : page.options) visit(page, option);
}

/// Options whose value is the next word (`repeats`: all words up to the next option).
Words options_with_value(const CommandPages& pages, bool repeats) {
  Words names;
  for_each_option(pages, [&](const CommandPage&, const OptionEntry& option) {
    if (option.value.empty() || option.repeats != repeats) return;
    for (const std::string& name : option.names)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  });
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

/// Lines of bash's `case`: the places ("quantize 2", "eval --device") that take the same words, and whether files too.
std::string bash_offers(const CommandPages& pages) {
  std::map<std::pair<Words, bool>, Words> places;
  const auto add = [&](const std::string& place, const OptionEntry& entry) { places[{entry.words, entry.files}].push_back(place); };
  for_each_option(pages, [&](const CommandPage& page, const OptionEntry& option) {
    if (option.value.empty()) return;
    for (const std::string& name : option.names)
      add(page.name.empty() ? fmt::format("*' {}'", name) : fmt::format("'{} {}'", page.name, name), option);
  });
  for (const CommandPage& page : pages.commands)
    for (std::size_t i = 0; i < page.arguments.size(); ++i)
      add(page.arguments[i].repeats ? fmt::format("'{} '[{}-9]*", page.name, i) : fmt::format("'{} {}'", page.name, i), page.arguments[i]);
  std::string cases;
  for (const auto& [offer, keys] : places)
    cases +=
        fmt::format("    {}) offered='{}'{} ;;\n", fmt::join(keys, "|"), fmt::join(offer.first, " "), offer.second ? " files=yes" : "");
  return cases;
}

/// What zsh does for a value: words, files, or both.
std::string zsh_action(const OptionEntry& entry) {
  Words words;
  for (const std::string& word : entry.words) words.push_back(quoted(word, ":"));
  if (words.empty()) return entry.files ? "_files" : " ";
  return entry.files ? fmt::format("{{compadd -- {}; _files}}", fmt::join(words, " ")) : fmt::format("({})", fmt::join(words, " "));
}

std::string zsh_options(const CommandPage& page) {
  std::string text;
  for (const OptionEntry& option : page.options) {
    const std::string value =
        option.value.empty() ? "" : fmt::format(":{}{}:{}", option.repeats ? "*-*:" : "", quoted(option.value, "[]:"), zsh_action(option));
    for (const std::string& name : option.names)  // "=": the value may follow in the same word
      text += fmt::format(" \\\n        '{}{}[{}]{}'", name, value.empty() || !name.starts_with("--") || option.repeats ? "" : "=",
                          quoted(option.text, "[]:"), value);
  }
  return text;
}

std::string zsh_arguments(const CommandPage& page) {
  std::string text;
  for (std::size_t i = 0; i < page.arguments.size(); ++i) {
    const OptionEntry& argument = page.arguments[i];
    text += fmt::format(" \\\n        '{}:{}:{}'", argument.repeats ? "*" : fmt::format("{}", i + 1), argument.names.front(),
                        zsh_action(argument));
  }
  return text;
}

}  // namespace

std::string bash_completion(const CommandPages& pages) {
  std::string options;
  for (const CommandPage& page : pages.commands)
    options += fmt::format("    {}) options='{}' ;;\n", page.name, fmt::join(option_names(page), " "));
  // Bash splits words at colons and equals signs too, so the line is split here, and the part of a word that bash holds for an earlier word
  // is taken off what is offered.
  return fmt::format(R"(# Completions of narrow for bash. Made by `narrow completion bash`.
_narrow() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words word command= option= options= offered= files= position=0 i letter
  local one=' {} ' many=' {} '
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  word=${{words[-1]}}
  for ((i = 1; i < ${{#words[@]}} - 1; ++i)); do
    case ${{words[i]}} in
      -*) [[ $one$many == *" ${{words[i]}} "* ]] && option=${{words[i]}} || option= ;;
      *)
        if [[ -z $option ]]; then
          if [[ -z $command ]]; then command=${{words[i]}}; else ((++position)); fi
        elif [[ $one == *" $option "* ]]; then
          option=
        fi ;;
    esac
  done
  if [[ $word == --*=* ]]; then
    option=${{word%%=*}} word=${{word#*=}}
  elif [[ $word == -* ]]; then
    case $command in
{}    esac
    mapfile -t COMPREPLY < <(compgen -W "$options {}" -- "$word")
    return
  elif [[ -z $command && -z $option ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{}' -- "$word")
    return
  fi
  case "$command ${{option:-$position}}" in
{}  esac
  mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word"; [[ -z $files ]] || compgen -f -- "$word")
  [[ -z $files ]] || compopt -o filenames 2> /dev/null
  for letter in : =; do
    [[ $COMP_WORDBREAKS == *$letter* && $word == *$letter* ]] || continue
    COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*$letter}}"}}"}}") word=${{word##*$letter}}
  done
  return 0
}}
complete -F _narrow narrow
)",
                     fmt::join(options_with_value(pages, false), " "), fmt::join(options_with_value(pages, true), " "), options,
                     fmt::join(option_names(pages.program), " "), fmt::join(command_names(pages), " "), bash_offers(pages));
}

std::string zsh_completion(const CommandPages& pages) {
  std::string commands, cases;
  for (const CommandPage& page : pages.commands) {
    commands += fmt::format("    '{}:{}'\n", page.name, quoted(page.sentence, ":"));
    cases += fmt::format("      {}) _arguments{}{}{} ;;\n", page.name, zsh_options(page), zsh_options(pages.program), zsh_arguments(page));
  }
  return fmt::format(R"(#compdef narrow
# Completions of narrow for zsh. Made by `narrow completion zsh`.
_narrow() {{
  local context state state_descr line
  local -A opt_args
  local -a commands=(
{})
  _arguments -C{} \
        '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument) case $words[1] in
{}    esac ;;
  esac
}}
if [[ $funcstack[1] == _narrow ]]; then _narrow "$@"; else compdef _narrow narrow; fi
)",
                     commands, zsh_options(pages.program), cases);
}

std::string fish_completion(const CommandPages& pages) {
  std::string text = fmt::format(R"(# Completions of narrow for fish. Made by `narrow completion fish`.
# Where the cursor stands: the command and how many of its arguments are there, "quantize 2"; nothing before the command.
function __narrow_place
    set -l words (commandline -opc)
    set -l plain
    set -l valued ''
    for word in $words[2..]
        if string match -q -- '-*' $word
            set valued $word
        else if contains -- $valued {}
            set valued ''
        else
            set -a plain $word
        end
    end
    if set -q plain[1]
        echo "$plain[1] "(math (count $plain) - 1)
    end
end
complete -c narrow -f
)",
                                 fmt::join(options_with_value(pages, false), " "));
  const auto offer = [](const OptionEntry& entry) {
    return fmt::format("{}{}",
                       entry.words.empty() ? "" : fmt::format(" -a '{}'", fish_quoted(fmt::format("{}", fmt::join(entry.words, " ")))),
                       entry.files ? " -F" : "");
  };
  const auto add_options = [&](const CommandPage& page, const std::string& condition) {
    for (const OptionEntry& option : page.options) {
      std::string names;
      for (const std::string& name : option.names) names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      text += fmt::format("complete -c narrow{}{}{} -d '{}'\n", condition, names,
                          option.value.empty() ? "" : (option.files ? " -r" : " -x") + offer(option), fish_quoted(option.text));
    }
  };
  add_options(pages.program, "");
  for (const CommandPage& page : pages.commands)
    text += fmt::format("complete -c narrow -n 'test -z (__narrow_place)' -a {} -d '{}'\n", page.name, fish_quoted(page.sentence));
  for (const CommandPage& page : pages.commands) {
    add_options(page, fmt::format(" -n '__fish_seen_subcommand_from {}'", page.name));
    for (std::size_t i = 0; i < page.arguments.size(); ++i)
      if (const std::string offered = offer(page.arguments[i]); !offered.empty())
        text += fmt::format("complete -c narrow -n 'string match -qr \\'^{} {}\\' (__narrow_place)'{}\n", page.name,
                            page.arguments[i].repeats ? fmt::format("[{}-9]", i) : fmt::format("{}$", i), offered);
  }
  return text;
}

}  // namespace narrow::command
