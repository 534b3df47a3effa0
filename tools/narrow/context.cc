#include "context.h"

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace narrow::command {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

/// A terminal shows Unicode where the locale says so, or where no locale was chosen (containers).
bool terminal_has_unicode() {
  std::setlocale(LC_CTYPE, "");
  const bool utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  std::setlocale(LC_CTYPE, "C");
  return utf8 || !(is_set("LC_ALL") || is_set("LC_CTYPE") || is_set("LANG"));
}

report::Style style_of(int descriptor, bool allow_color) {
  report::Style style;
  if (isatty(descriptor) == 0) return style;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  style.color = allow_color && !dumb && !is_set("NO_COLOR");
  style.unicode = !dumb && terminal_has_unicode();
  winsize size{};
  style.width = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  return style;
}

}  // namespace

void Context::warn(std::string_view sentence) const {
  std::fputs(fmt::format("{} {}\n", report::painted(err, report::Paint::kWarning, "narrow: warning:"), sentence).c_str(), stderr);
}

bool Context::has_argument(std::string_view name) const {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const std::string& argument) { return argument == name || argument.starts_with(std::string(name) + "="); });
}

report::ProgressMode Context::progress_mode() const {
  if (quiet) return report::ProgressMode::kNone;
  return err_is_terminal ? report::ProgressMode::kBar : report::ProgressMode::kLines;
}

void detect_terminal(Context& context) {
  context.out = style_of(STDOUT_FILENO, !context.no_color);
  context.err = style_of(STDERR_FILENO, !context.no_color);
  context.err_is_terminal = isatty(STDERR_FILENO) != 0;
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

void throw_if_interrupted() {
  if (interrupted != 0) throw Interrupted{};
}

}  // namespace narrow::command
