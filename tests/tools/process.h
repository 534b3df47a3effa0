#pragma once
/// Runs a program and catches what it says.

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace narrow::test {

struct Outcome {
  int code = -1;  ///< of exit; 128 + the signal otherwise
  std::string out, err;
};

inline int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

[[noreturn]] inline void become(const std::vector<std::string>& command, int out, int err) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

/// Standard output and error as two pipes, read until both are closed.
inline Outcome run(const std::vector<std::string>& command) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return {};
  const pid_t child = fork();
  if (child == 0) become(command, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  Outcome outcome;
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[2] = {&outcome.out, &outcome.err};
  for (int open = 2; open > 0;) {
    poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t size = read(ends[i].fd, buffer, sizeof buffer);
      if (size > 0) {
        texts[i]->append(buffer, static_cast<std::size_t>(size));
      } else {
        close(ends[i].fd);
        ends[i].fd = -1;
        --open;
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = exit_code(status);
  return outcome;
}

/// Standard output goes to a pipe whose reader is gone.
inline Outcome run_unread(const std::vector<std::string>& command) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return {};
  close(out[0]);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    become(command, out[1], nowhere);
  }
  close(out[1]);
  close(nowhere);
  int status = 0;
  waitpid(child, &status, 0);
  return {exit_code(status), "", ""};
}

/// Both streams on a terminal of the given width; what it shows is in `out`.
inline Outcome run_on_terminal(const std::vector<std::string>& command, unsigned short width) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return {};
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  winsize size{};
  size.ws_row = 40;
  size.ws_col = width;
  ioctl(terminal, TIOCSWINSZ, &size);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TERM", "xterm-256color", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    become(command, terminal, terminal);
  }
  close(terminal);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(master, buffer, sizeof buffer)) > 0;) outcome.out.append(buffer, static_cast<std::size_t>(got));
  close(master);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = exit_code(status);
  return outcome;
}

/// Sends a signal once the first line of standard error is there. The pipe is as small as the system allows and is not
/// read until then, so that a program that reports its progress cannot be through before the signal comes.
inline Outcome run_and_signal(const std::vector<std::string>& command, int signal) {
  int err[2];
  if (pipe2(err, O_CLOEXEC) != 0) return {};
  fcntl(err[1], F_SETPIPE_SZ, 4096);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) become(command, nowhere, err[1]);
  close(err[1]);
  close(nowhere);
  Outcome outcome;
  char buffer[256];
  ssize_t got = read(err[0], buffer, 16);
  if (got > 0) outcome.err.append(buffer, static_cast<std::size_t>(got));
  kill(child, signal);
  while ((got = read(err[0], buffer, sizeof buffer)) > 0) outcome.err.append(buffer, static_cast<std::size_t>(got));
  close(err[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = exit_code(status);
  return outcome;
}

}  // namespace narrow::test
