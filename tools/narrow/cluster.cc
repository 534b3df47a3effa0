#include "cluster.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "narrow/error.h"
#include "report/json.h"

namespace narrow::command {
namespace {

/// Says in one sentence what is missing; 5: not possible on this machine.
constexpr const char* kProgram =
    "import sys\n"
    "try:\n"
    "    from narrow.ray.__main__ import main\n"
    "except ImportError as missing:\n"
    "    print(f'narrow: --cluster needs the Python package narrow, which {sys.executable} lacks ({missing}); '\n"
    "          \"pip install 'narrow[ray]', or name another with --python\", file=sys.stderr)\n"
    "    sys.exit(5)\n"
    "sys.exit(main())\n";

/// The request as the standard input of the program to come.
void offer_on_standard_input(const std::string& text) {
  std::FILE* file = std::tmpfile();
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
                       std::fseek(file, 0, SEEK_SET) == 0 && ::dup2(::fileno(file), STDIN_FILENO) >= 0;
  if (!written) throw IoError(fmt::format("the request to the cluster cannot be written: {}", std::strerror(errno)));
}

/// A program that answers as Python does. Another one would take the request, do nothing and call it done.
void require_python(const std::string& program) {
  constexpr int kAnswer = 42;
  const char* arguments[] = {program.c_str(), "-c", "raise SystemExit(42)", nullptr};
  const pid_t child = ::fork();
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_RDWR);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, stream);
    ::execvp(program.c_str(), const_cast<char* const*>(arguments));
    ::_exit(errno == ENOENT ? 127 : 126);
  }
  int status = 0;
  if (child > 0)
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == kAnswer) return;
  throw Unsupported(fmt::format(
      "--cluster needs Python with the package narrow, and {} {}; pip install 'narrow[ray]', or name another with --python", program,
      child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 127 ? "cannot be run: there is no such program" : "is no Python that runs"));
}

/// Whether the text is a whole number from `least` to `most`.
bool is_number(std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
}

}  // namespace

void check_cluster_address(const std::string& address) {
  const std::string_view text = address;
  const std::size_t colon = text.rfind(':');
  const bool has_port = colon != std::string_view::npos && colon > 0 && is_number(text.substr(colon + 1), 1, 65535);
  const bool good = text.starts_with("local:")   ? is_number(text.substr(6), 1, 4096)
                    : text.starts_with("ray://") ? has_port && colon > 6
                                                 : has_port || text == "auto";
  if (!good)
    throw InvalidArgument(fmt::format(
        "--cluster '{}' is no address; there are local:N (1 to 4096 workers here), ray://HOST:PORT, HOST:PORT and auto", address));
}

void quantize_on_cluster(const Context& context, const ClusterOptions& cluster, const std::string& input, const std::string& output,
                         const Recipe& recipe, const Method& method, const TokenWindows& windows) {
  const report::Json request{{"cluster", cluster.address},
                             {"input", input},
                             {"output", output},
                             {"recipe", recipe.to_json()},
                             {"method", method.to_string()},
                             {"act_order", method.act_order},
                             {"damping", method.damping},
                             {"windows", windows},
                             {"json", context.json},
                             {"quiet", context.quiet},
                             {"cpus", context.threads > 0 ? context.threads : 1}};
  require_python(cluster.python);
  offer_on_standard_input(request.dump());
  const char* arguments[] = {cluster.python.c_str(), "-c", kProgram, nullptr};
  ::execvp(cluster.python.c_str(), const_cast<char* const*>(arguments));
  throw Unsupported(
      fmt::format("--cluster needs Python with the package narrow, and {} cannot be run: {}", cluster.python, std::strerror(errno)));
}

}  // namespace narrow::command
