// A file in memory, overwritten each time: the reader of files is the library's own.
#include "as_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace narrow::fuzz {

const std::filesystem::path& as_file(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
  static const std::filesystem::path path = "/proc/self/fd/" + std::to_string(descriptor);
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) std::abort();
  if (pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  return path;
}

}  // namespace narrow::fuzz
