#include "value_checks.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "narrow/error.h"

namespace narrow::command {

void check_output_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) throw IoError(fmt::format("{} cannot be written: it is a directory; name a file", path));
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw IoError(fmt::format("{} cannot be written: it is not a regular file, and one would take its place", path));
  const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(parent, ignored)) throw IoError(fmt::format("{} cannot be written: {} is not a directory", path, parent.string()));
  if (::access(parent.c_str(), W_OK) != 0) throw IoError(fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace narrow::command
