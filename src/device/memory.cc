#include "device/memory.h"

#include <cstdlib>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow {

std::shared_ptr<void> allocate_memory(std::size_t size, Device device) {
  if (!device.is_cpu()) return allocate_cuda_memory(size, device.index);
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* data = rounded >= size ? std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded) : nullptr;
  if (data == nullptr) throw InvalidArgument(fmt::format("cannot allocate {} bytes of memory", size));
  return {data, std::free};
}

}  // namespace narrow
