/// The int8 product of Ampere, Ada and later: D = epilogue(A * B^T) by mma.sync, operands through cp.async.
/// Mapping:  a thread block has 128 x 128 of D, its eight warps 64 x 32 each; k in slices of 64, four stages in shared memory.
/// Requires: compute capability 8.0; rows of A and B 16-byte aligned, zeros from k to a multiple of 16.
/// Bound:    the tensor cores' mma.sync rate. Meaning: reference/matmul.cc, exactly.

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_parts.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTile = 128, kSlice = 64, kStages = 4, kThreads = 256, kSliceBytes = kTile * kSlice, kStageBytes = 2 * kSliceBytes;
using Rows = SliceRows<kSlice>;

__global__ void __launch_bounds__(kThreads, 2) int8_product_mma(const ByteProblem p, int tiles_n) {
  extern __shared__ __align__(128) std::byte memory[];
  const int first_m = static_cast<int>(blockIdx.x) / tiles_n * kTile, first_n = static_cast<int>(blockIdx.x) % tiles_n * kTile;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, row = warp / 4 * 64,
            column = warp % 4 * 32;
  const int slices = (p.k + kSlice - 1) / kSlice;
  const auto copy = [&](int slice) {
    std::byte* stage = memory + slice % kStages * kStageBytes;
    if (slice < slices) {
      Rows::copy<kTile, kThreads>(stage, p.a, p.a_pitch, first_m, p.m, slice * kSlice, p.k);
      Rows::copy<kTile, kThreads>(stage + kSliceBytes, p.b, p.b_pitch, first_n, p.n, slice * kSlice, p.k);
    }
    commit_copies();
  };
  int sums[4][4][4] = {};
  for (int slice = 0; slice < kStages - 1; ++slice) copy(slice);
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy(slice + kStages - 1);
    const std::byte* stage = memory + slice % kStages * kStageBytes;
#pragma unroll
    for (int step = 0; step < kSlice / 32; ++step) {
      std::uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) Rows::load_fragment(a[i], stage, row + i * 16, step * 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) Rows::load_fragment(b[j], stage + kSliceBytes, column + j * 16, step * 2);
#pragma unroll
      for (int i = 0; i < 16; ++i) multiply_bytes(sums[i / 4][i % 4], a[i / 4], b[i % 4 / 2][i % 2], b[i % 4 / 2][i % 2 + 2]);
    }
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int m = first_m + row + i / 16 * 16 + i / 2 % 2 * 8 + lane / 4, n = first_n + column + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
    if (m < p.m && n < p.n)
      store_integer(p.epilogue, outer_of(p), p.d, sums[i / 16][i / 4 % 4][i % 4], m, n, n,
                    p.d_is_col32 ? (std::int64_t{n} / 32 * p.m + m) * 32 + n % 32 : m * p.d_pitch + n, std::int64_t{m} * p.n + n);
  }
}

}  // namespace

int launch_int8_product_mma(const ByteProblem& p, Stream stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const std::int64_t tiles_m = (p.m + kTile - 1) / kTile, tiles_n = (p.n + kTile - 1) / kTile;
  if (tiles_m * tiles_n > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  constexpr int kBytes = kStages * kStageBytes;
  if (const cudaError_t error = cudaFuncSetAttribute(int8_product_mma, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)) return error;
  int8_product_mma<<<static_cast<unsigned>(tiles_m * tiles_n), kThreads, kBytes, stream>>>(p, static_cast<int>(tiles_n));
  return cudaGetLastError();
}

}  // namespace narrow::cuda
