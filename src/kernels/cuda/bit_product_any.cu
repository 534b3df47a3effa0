/// Products of bits by exclusive or and popcount: any device, any shape.
///   sum_k a b = k - 2 popcount(A ^ B)
/// Mapping:  few rows of A: a warp per column of D, its lanes along k, up to eight rows at once, so that B is read once from memory. Else
///           tiles of 32 x 32 of D by 256 threads, 512 bits along k of both in shared memory at a time.
/// Bound:    B's bytes; popcounts (16 words a cycle and multiprocessor).     Meaning: reference/matmul.cc, bit for bit.

#include "kernels/cuda/bit_product.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product_finish.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kTile = 32, kWords = 16, kFewRows = 8;

__device__ void store(const BitProblem& p, int popcount, int row, int column) {
  const int sum = p.k - 2 * popcount;
  const std::int64_t at = row * p.d_pitch + column;
  if (p.epilogue.out == DType::kI32) {
    static_cast<int*>(p.d)[at] = sum;
    return;
  }
  const float v = __fmul_rn(__int2float_rn(sum), __fmul_rn(p.a_terms[row].scale, p.b_terms[column].scale));
  finish_product(p.epilogue, p.d, v, row, column, p.n, at);
}

__device__ int differences(uint4 a, uint4 b) { return __popc(a.x ^ b.x) + __popc(a.y ^ b.y) + __popc(a.z ^ b.z) + __popc(a.w ^ b.w); }

__global__ void __launch_bounds__(kThreads) few_rows(const BitProblem p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int column = static_cast<int>(warp % p.n), first = static_cast<int>(warp / p.n) * kFewRows;
  if (first >= p.m) return;
  const int rows = min(kFewRows, p.m - first), chunks = (p.k + 127) / 128;
  const auto* b = reinterpret_cast<const uint4*>(p.b + column * p.b_pitch);
  int popcounts[kFewRows] = {};
  for (int i = lane; i < chunks; i += 32) {
    const uint4 of_b = __ldg(b + i);
#pragma unroll
    for (int r = 0; r < kFewRows; ++r)
      if (r < rows) popcounts[r] += differences(of_b, __ldg(reinterpret_cast<const uint4*>(p.a + (first + r) * p.a_pitch) + i));
  }
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    const int popcount = __reduce_add_sync(0xFFFFFFFFu, popcounts[r]);
    if (lane == r && r < rows) store(p, popcount, first + r, column);
  }
}

__global__ void __launch_bounds__(kThreads) tiles(const BitProblem p) {
  __shared__ std::uint32_t a[kTile][kWords + 1], b[kTile][kWords + 1];
  const int tiles_n = (p.n + kTile - 1) / kTile, thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / tiles_n * kTile, column = static_cast<int>(blockIdx.x) % tiles_n * kTile;
  const int words = (p.k + 31) / 32, x = thread % 16, y = thread / 16;
  int popcounts[2][2] = {};
  const auto word_at = [&](const std::uint8_t* matrix, std::int64_t pitch, int r, int rows, int word) {
    return r < rows && word < words ? __ldg(reinterpret_cast<const std::uint32_t*>(matrix + r * pitch) + word) : 0u;
  };
  for (int first = 0; first < words; first += kWords) {
    for (int i = thread; i < kTile * kWords; i += kThreads) {
      a[i / kWords][i % kWords] = word_at(p.a, p.a_pitch, row + i / kWords, p.m, first + i % kWords);
      b[i / kWords][i % kWords] = word_at(p.b, p.b_pitch, column + i / kWords, p.n, first + i % kWords);
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWords; ++w)
#pragma unroll
      for (int i = 0; i < 4; ++i) popcounts[i / 2][i % 2] += __popc(a[y + i / 2 * 16][w] ^ b[x + i % 2 * 16][w]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + y + i / 2 * 16, c = column + x + i % 2 * 16;
    if (r < p.m && c < p.n) store(p, popcounts[i / 2][i % 2], r, c);
  }
}

}  // namespace

int launch_bit_product_any(const BitProblem& problem, Stream stream) {
  if (problem.m <= 2 * kFewRows) {
    const std::int64_t warps = std::int64_t{problem.n} * ((problem.m + kFewRows - 1) / kFewRows);
    return launch_kernel(few_rows, (warps * 32 + kThreads - 1) / kThreads, kThreads, stream, problem);
  }
  const std::int64_t rows = (problem.m + kTile - 1) / kTile, columns = (problem.n + kTile - 1) / kTile;
  return launch_kernel(tiles, rows * columns, kThreads, stream, problem);
}

}  // namespace narrow::cuda
