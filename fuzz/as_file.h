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
    if (pwrite(descriptor_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    if (size < size_ && ftruncate(descriptor_, static_cast<off_t>(size)) != 0) std::abort();
    size_ = size;
    return path_;
  }

 private:
  int descriptor_;
  std::size_t size_ = 0;
  std::string path_;
};

}  // namespace narrow::fuzz
