#include "cluster.h"

#include <unistd.h>

#include <cerrno>
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

}  // namespace

void quantize_on_cluster(const Context& context, const ClusterOptions& cluster, const std::string& input, const std::string& output,
                         const Recipe& recipe, const Method& method, const TokenWindows& windows) {
  const report::Json request{{"cluster", cluster.address},     {"input", input},
                             {"output", output},               {"recipe", recipe.to_json()},
                             {"method", method.to_string()},   {"act_order", method.act_order},
                             {"damping", method.damping},      {"windows", windows},
                             {"json", context.json},           {"quiet", context.quiet},
                             {"cpus", context.threads > 0 ? context.threads : 1}};
  offer_on_standard_input(request.dump());
  const char* arguments[] = {cluster.python.c_str(), "-c", kProgram, nullptr};
  ::execvp(cluster.python.c_str(), const_cast<char* const*>(arguments));
  throw Unsupported(fmt::format("--cluster needs Python with the package narrow, and {} cannot be run: {}; pip install 'narrow[ray]'",
                                cluster.python, std::strerror(errno)));
}

}  // namespace narrow::command
