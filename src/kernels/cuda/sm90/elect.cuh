#pragma once
/// One thread of a warp to start copies.

#include <cstdint>

namespace narrow::cuda::sm90 {

/// True in one thread of a warp whose threads are all here, the same one every time. The compiler knows that it is one: copies take their
/// operands straight from uniform registers. Under `if (lane == 0)` it asks in a loop around every copy which threads there are, which
/// takes about 185 cycles each.
__device__ inline bool is_elected() {
  std::uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "@one mov.u32 %0, 1;\n"
      "}\n"
      : "+r"(elected));
  return elected != 0;
}

}  // namespace narrow::cuda::sm90
