#pragma once
/// The bytes of a fuzzer as a regular file, for readers that take a path: memory, overwritten each time.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace narrow::fuzz {

class AsFile {
 public:
  AsFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(descriptor_)) {}
  const std::string& with(const std::uint8_t* data, std::size_t size) {
    const off_t length = static_cast<off_t>(size);
    if (ftruncate(descriptor_, length) != 0 || pwrite(descriptor_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return path_;
  }

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace narrow::fuzz
