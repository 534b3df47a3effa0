#include "value_checks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "narrow/error.h"

namespace narrow::command {
namespace {

/// Levenshtein's distance, one row at a time.
std::size_t letters_apart(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j < row.size(); ++j)
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  std::size_t least = 3;
  std::string nearest;
  for (const std::string& name : names)
    if (const std::size_t apart = letters_apart(word, name); apart < least) {
      least = apart;
      nearest = name;
    }
  return nearest;
}

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
