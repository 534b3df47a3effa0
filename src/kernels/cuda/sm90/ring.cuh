#pragma once
/// A place in a ring of slots, and the parity of its barriers there.

namespace narrow::cuda::sm90 {

template <int kSlots>
struct Ring {
  int slot = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++slot == kSlots) slot = 0, parity ^= 1u;
  }
};

}  // namespace narrow::cuda::sm90
