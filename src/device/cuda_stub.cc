/// The CUDA half of the device layer in a build without CUDA.

#include "device/memory.h"
#include "narrow/error.h"

namespace narrow {

std::shared_ptr<void> allocate_cuda_memory(std::size_t, int) {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace narrow
