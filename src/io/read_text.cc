#include <fmt/format.h>

#include "io/file_reader.h"
#include "narrow/error.h"

namespace narrow::io {

std::string read_text(const std::filesystem::path& path, std::uint64_t limit) {
  const FileReader file(path);
  if (file.size() > limit)
    throw CorruptFile(fmt::format("{}: its {} bytes are more than the {} that such a file may have", path.string(), file.size(), limit));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace narrow::io
