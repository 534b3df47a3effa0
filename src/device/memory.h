#pragma once
/// Memory of a device. The CUDA half is device/cuda/ or, in a build without CUDA, device/cuda_stub.cc.

#include <cstddef>
#include <memory>

#include "narrow/tensor.h"

namespace narrow {

/// Uninitialised memory, aligned to at least 64 bytes, freed with its last owner. Throws InvalidArgument where the
/// size cannot be had.
std::shared_ptr<void> allocate_memory(std::size_t size, Device device);

/// The CUDA half; Unsupported with one sentence where there is no CUDA build, driver or device.
std::shared_ptr<void> allocate_cuda_memory(std::size_t size, int index);

}  // namespace narrow
