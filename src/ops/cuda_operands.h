#pragma once
/// What every product on a CUDA device asks of its operands.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "device/cuda/runtime.h"
#include "narrow/error.h"

namespace narrow::cuda {

/// The largest dimension: kernels count elements of a dimension and a tile beyond in 32 bits.
inline constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;

inline void require(bool condition, std::string_view sentence) {
  if (!condition) throw InvalidArgument(std::string("matmul: ").append(sentence));
}

/// x, w and y lie on one CUDA device, which is there.
inline void require_one_device(Device x, Device w, Device y) {
  require(!x.is_cpu(), "x is on the CPU; copy it with cuda::to_device, or call the function without cuda::");
  require_device(x.index);
  require(w == x && y == x, "x, w and y must be on one device");
}

}  // namespace narrow::cuda
