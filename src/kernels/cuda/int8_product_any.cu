/// The int8 product that runs on every device, of rows and of stripes of 32 columns: D = epilogue(A * B^T).
/// Mapping: one thread per element of D, 16 x 16 of them per thread block; 16 bytes of either side at a time, dp4a.
/// Bound:   loads, far from the tensor cores. Meaning: reference/matmul.cc, exactly.

#include <algorithm>

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kSide = 16;

__global__ void int8_product_any(const ByteProblem p) {
  const int column = static_cast<int>(blockIdx.x) * kSide + static_cast<int>(threadIdx.x) % kSide;
  if (column >= p.n) return;
  for (int row = static_cast<int>(blockIdx.y) * kSide + static_cast<int>(threadIdx.x) / kSide; row < p.m;
       row += static_cast<int>(gridDim.y) * kSide) {
    int sum = 0;
    for (int k = 0; k < p.k; k += 16) {
      const std::int64_t at = p.a_is_col32 ? (std::int64_t{k} / 32 * p.m + row) * 32 + k % 32 : row * p.a_pitch + k;
      const int4 x = __ldg(reinterpret_cast<const int4*>(p.a + at)), w = __ldg(reinterpret_cast<const int4*>(p.b + column * p.b_pitch + k));
      sum = __dp4a(x.x, w.x, sum);
      sum = __dp4a(x.y, w.y, sum);
      sum = __dp4a(x.z, w.z, sum);
      sum = __dp4a(x.w, w.w, sum);
    }
    const std::int64_t at = p.d_is_col32 ? (std::int64_t{column} / 32 * p.m + row) * 32 + column % 32 : row * p.d_pitch + column;
    store_integer(p.epilogue, outer_of(p), p.d, sum, row, column, column, at, std::int64_t{row} * p.n + column);
  }
}

}  // namespace

int launch_int8_product_any(const ByteProblem& p, Stream stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  int8_product_any<<<dim3(static_cast<unsigned>((p.n + kSide - 1) / kSide),
                          static_cast<unsigned>(std::min((p.m + kSide - 1) / kSide, 65535))),
                     kSide * kSide, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace narrow::cuda
