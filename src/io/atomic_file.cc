#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  return directory_of(path) / fmt::format(".{}{}{}-{}", path.filename().string().substr(0, 180), kPartialMark, ::getpid(), counter++);
}

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw IoError(fmt::format("{} cannot be {}: {}", path.string(), what, std::strerror(errno)));
}

int open_retrying(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), flags, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

/// Makes names in a directory durable. File systems that do not know fsync of a directory answer EINVAL.
void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = open_retrying(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("opened", directory);
  const bool failed = ::fsync(descriptor) != 0 && errno != EINVAL;
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (failed) fail("made durable", directory);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(temporary_name(path_)) {
  descriptor_ = open_retrying(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("created", path_);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  constexpr std::size_t kLargestWrite = std::size_t{1} << 30;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        ::pwrite(descriptor_, bytes.data() + done, std::min(bytes.size() - done, kLargestWrite), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (count == 0) errno = ENOSPC;
      throw IoError(fmt::format("{}: writing {} bytes at offset {} failed: {}", path_.string(), bytes.size() - done, offset + done,
                                std::strerror(errno)));
    }
    done += static_cast<std::size_t>(count);
  }
}

void AtomicFile::commit(Names names) {
  if (::fsync(descriptor_) != 0) fail("made durable", path_);  // never retried: the kernel may have dropped the pages
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 && errno != EINTR) fail("closed", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renamed into its place", path_);
  temporary_.clear();
  if (names == Names::kDurable) sync_directory(directory_of(path_));
}

void write_text(const std::filesystem::path& path, std::string_view text, Names names) {
  AtomicFile file(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.commit(names);
}

AtomicDirectory::AtomicDirectory(std::filesystem::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/"
  temporary_ = temporary_name(path_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) fail("created", path_);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!committed_) std::filesystem::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  sync_directory(temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renamed into its place", path_);
  committed_ = true;
  sync_directory(directory_of(path_));
}

}  // namespace narrow::io
