#pragma once
/// How an oracle brings back what its threads found together.

#include <cstdint>

#include "device/cuda/runtime.h"

namespace narrow::cuda::testing {

/// Threads of one block of an oracle's kernel.
inline constexpr int kOracleThreads = 128;

/// What `launch(blocks, totals)` left in totals, which start as zero bytes on the device; blocks hold one thread for each of `count`
/// elements.
template <class Totals, class Launch>
Totals totals_of(std::int64_t count, Stream stream, Launch launch) {
  static const Buffer memory = Buffer::allocate(sizeof(Totals), Device::cuda(0));
  Totals totals{};
  if (count == 0) return totals;
  set_bytes(memory.data(), 0, sizeof(Totals), stream);
  launch(static_cast<unsigned>((count + kOracleThreads - 1) / kOracleThreads), memory.as<Totals>());
  check(cudaGetLastError(), "the oracle");
  copy_bytes(&totals, memory.data(), sizeof(Totals), stream);
  synchronize(stream);
  return totals;
}

}  // namespace narrow::cuda::testing
