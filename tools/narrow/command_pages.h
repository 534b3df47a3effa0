#pragma once
/// The command line as data, read from the parser itself: what manual pages, the reference of the docs and completions are made from.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace narrow::command {

struct OptionEntry {
  std::vector<std::string> names;  ///< "-o", "--output"; of an argument its one name
  std::string value;               ///< "FILE"; empty for flags and arguments
  std::string text;
  bool required = false;
  bool repeats = false;            ///< several values may follow it
  std::vector<std::string> words;  ///< values that a shell offers
  bool files = false;              ///< paths are values too
};

/// One subcommand, or narrow itself.
struct CommandPage {
  std::string name;  ///< "quantize"; empty for narrow itself
  std::string sentence;
  std::string example;  ///< lines that can be typed
  std::vector<OptionEntry> arguments, options;

  /// "narrow quantize IN OUT [SCHEME] [options]".
  std::string usage() const;
};

struct CommandPages {
  CommandPage program;  ///< the options of every command
  std::vector<CommandPage> commands;
  std::string notes;  ///< what `narrow --help` ends with
};
CommandPages describe(const CLI::App& app);

/// Manual pages (roff): of narrow itself, and of one command.
std::string manual_page(const CommandPages& pages, const CommandPage& page);
/// All commands as one page of the docs.
std::string markdown_reference(const CommandPages& pages);

/// Fills what a shell offers for the values of every option and argument.
void offer_values(CommandPages& pages);

std::string bash_completion(const CommandPages& pages);
std::string zsh_completion(const CommandPages& pages);
std::string fish_completion(const CommandPages& pages);

}  // namespace narrow::command
