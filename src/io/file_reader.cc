#include "io/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) throw IoError(fmt::format("{} cannot be opened: {}", path_.string(), std::strerror(errno)));
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string why = known ? "it is not a regular file" : std::strerror(errno);
    ::close(descriptor_);
    throw IoError(fmt::format("{} cannot be read: {}", path_.string(), why));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileReader::~FileReader() { ::close(descriptor_); }

void FileReader::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset)
    throw CorruptFile(fmt::format("{}: {} bytes at offset {} lie beyond its {} bytes", path_.string(), out.size(), offset, size_));
  constexpr std::size_t kLargestRead = std::size_t{1} << 30;  // the system's own limit is just below 2^31
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t count =
        ::pread(descriptor_, out.data() + done, std::min(out.size() - done, kLargestRead), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw IoError(
          fmt::format("{}: reading {} bytes at offset {} failed: {}", path_.string(), out.size(), offset + done, std::strerror(errno)));
    if (count == 0)
      throw CorruptFile(fmt::format("{}: it ends at offset {} and had {} bytes when it was opened", path_.string(), offset + done, size_));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace narrow::io
