#include "io/spill.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

[[noreturn]] void fail(const std::filesystem::path& directory) {
  throw IoError(fmt::format("activations cannot be spilled to {}: {}", directory.string(), std::strerror(errno)));
}

/// An open file without a name, closed with this object.
class NamelessFile {
 public:
  explicit NamelessFile(const std::filesystem::path& directory) {
    std::string name = (directory / ".narrow-spill-XXXXXX").string();
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0 || ::unlink(name.c_str()) != 0) fail(directory);
  }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;
  ~NamelessFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace

Tensor Spill::keep(const Tensor& x) const {
  if (directory_.empty() || x.size() == 0) return x;
  const Tensor values = x.contiguous();
  const std::size_t size = values.byte_size();
  const NamelessFile file(directory_);
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = ::write(file.descriptor(), values.data() + done, size - done);
    if (written < 0 && errno != EINTR) fail(directory_);
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  void* place = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (place == MAP_FAILED) fail(directory_);
  const std::shared_ptr<void> owner(place, [size](void* mapped) { ::munmap(mapped, size); });
  return Tensor::over(Buffer::adopt(owner, place, size, Device::cpu()), x.dtype(), x.shape());
}

void Spill::rest(const Tensor& x) const {
  if (!directory_.empty() && x.size() > 0) ::madvise(x.data(), x.byte_size(), MADV_DONTNEED);
}

}  // namespace narrow::io
