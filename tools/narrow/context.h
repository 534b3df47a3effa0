#pragma once
/// What all commands share: the global options, what the terminal can show, and where the output goes.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "report/json.h"
#include "report/progress.h"
#include "report/style.h"

namespace narrow::command {

/// Documented in `narrow --help` and docs/command.md.
enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  ///< the command ran, and what it checked is not right
  kWrongUsage = 2,
  kBadFile = 3,
  kInputOutput = 4,
  kUnsupported = 5,
  kInternal = 6,
  kInterrupted = 130,
};

/// Ctrl-C or a request to end, seen between two tensors.
struct Interrupted {};

struct Context {
  int threads = 0;  ///< 0: as many as the machine has
  std::string cpu;
  std::string tuned;  ///< a file of measured choices of GPU kernels
  bool json = false, quiet = false, no_color = false;

  std::vector<std::string> arguments;  ///< after the program's name
  std::function<void()> run;           ///< the chosen command
  report::Style out, err;
  bool err_is_terminal = false;
  std::string output;  ///< written to standard output once the command is through
  int exit_code = kOk;

  /// Text for people: nothing with --json or --quiet.
  void print(std::string_view text) { output += json || quiet ? "" : text; }
  /// The answer for machines, with --json alone.
  void answer(const report::Json& object) { output += json ? report::json_text(object) : ""; }
  /// One line on standard error, at once; with --quiet too.
  void warn(std::string_view sentence) const;
  bool has_argument(std::string_view name) const;
  report::ProgressMode progress_mode() const;
};

/// Fills the styles of both streams from what they are connected to.
void detect_terminal(Context& context);

/// From now on Ctrl-C and SIGTERM set a flag, once: a second one ends the process at once.
void catch_interrupts();
/// Throws Interrupted where the flag is set.
void throw_if_interrupted();

}  // namespace narrow::command
