#pragma once
/// Hopper's bulk copies into shared memory and the barriers they complete on. Only code for compute capability 9.0 and later may call this.

#include <cstdint>

#include <cuda_runtime.h>

namespace narrow::cuda {

/// Arrives at, and waits for a phase of parity 0 or 1 of, the barrier at an address in shared memory.
__device__ inline void arrive_at(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait_at(std::uint32_t barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// An mbarrier in shared memory.
struct alignas(8) Barrier {
  std::uint64_t state;

  __device__ std::uint32_t address() const { return static_cast<std::uint32_t>(__cvta_generic_to_shared(&state)); }
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { arrive_at(address()); }
  __device__ void arrive_expecting(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Waits until phase number `use` (0, 1, ...) has completed; it must be this phase or the one before that is current.
  __device__ void wait(unsigned use) { wait_at(address(), use & 1u); }
};

/// Makes initialised barriers visible to the copy engine.
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// bytes (a multiple of 16) from global to shared memory, both 16-byte aligned; completes on the barrier.
__device__ inline void copy_bulk(void* to, const void* from, std::uint32_t bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes), "r"(barrier.address())
               : "memory");
}

/// The same of bytes that will not be read again: the second-level cache lets them go first.
__device__ inline void copy_bulk_once(void* to, const void* from, std::uint32_t bytes, Barrier& barrier) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes), "r"(barrier.address()), "l"(policy)
               : "memory");
}

}  // namespace narrow::cuda
