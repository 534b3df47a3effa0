#pragma once
/// Other libraries' products, where this machine has them: found when narrow runs, never linked.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace narrow::command {

/// y[m, n] = x[m, k] w[n, k]^T by another library.
struct Peer {
  std::string name;   ///< "OpenBLAS, fp32"
  bool int8 = false;  ///< multiplies int8 codes into int32 sums; else fp32 values
  /// Operands are the caller's: float or std::int8_t x and w, float or std::int32_t y, as `int8` says.
  std::function<void(std::int64_t m, std::int64_t n, std::int64_t k, const void* x, const void* w, void* y)> multiply;
};

/// OpenBLAS and oneDNN, with this many threads.
std::vector<Peer> find_peers(int threads);

}  // namespace narrow::command
