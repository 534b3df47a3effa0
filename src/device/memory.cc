#include "device/memory.h"

#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::size_t kAlignment = 64;
// Prefetchers stop at the end of a page: on large tensors huge pages nearly double the rate of reading.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

std::shared_ptr<void> allocate_memory(std::size_t size, Device device) {
  if (!device.is_cpu()) return allocate_cuda_memory(size, device.index);
  const std::size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* data = rounded >= size ? std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded) : nullptr;
  if (data == nullptr) throw InvalidArgument(fmt::format("cannot allocate {} bytes of memory", size));
#if defined(__linux__)
  if (size >= kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // a wish: nothing depends on it
#endif
  return {data, std::free};
}

}  // namespace narrow
