// measure REPORT COMMAND...: runs a command and writes "exit-code milliseconds processor-milliseconds peak-KiB" to the file REPORT. A
// program of its own, since a child inherits the peak memory of the process that started it, and an interpreter's is larger than what is
// measured.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

static double milliseconds_of(const timeval& time) {
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
}

int main(int count, char** words) {
  if (count < 3) return 2;
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);  // a command that hangs ends by a signal
    execv(words[2], words + 2);
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) < 0) return 2;
  const double milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  std::FILE* report = std::fopen(words[1], "w");
  if (report == nullptr) return 2;
  std::fprintf(report, "%d %.3f %.3f %ld\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), milliseconds,
               milliseconds_of(usage.ru_utime) + milliseconds_of(usage.ru_stime), usage.ru_maxrss);
  return std::fclose(report) == 0 ? 0 : 2;
}
