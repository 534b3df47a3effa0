/// The int8 product of Ampere, Ada and later: D = epilogue(A * B^T) by mma.sync, operands through cp.async.
/// Mapping:  a thread block has 128 x 128 of D, its eight warps 64 x 32 each; k in slices of 64, four stages in shared memory.
/// Requires: compute capability 8.0; rows of A and B 16-byte aligned, zeros from k to a multiple of 16.
/// Bound:    the tensor cores' mma.sync rate. Meaning: reference/matmul.cc, exactly.

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTile = 128, kSlice = 64, kStages = 4, kThreads = 256, kSliceBytes = kTile * kSlice, kStageBytes = 2 * kSliceBytes;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Chunk `chunk` of 16 bytes of row `row` of a slice; chunks are exchanged so that eight rows touch all banks.
__device__ inline int place(int row, int chunk) { return row * kSlice + (chunk ^ (row / 2 % 4)) * 16; }

/// A slice of 128 rows x 64 bytes: two copies of 16 bytes per thread; zeros outside the matrix.
__device__ inline void copy_slice(std::byte* to, const std::uint8_t* from, std::int64_t pitch, int first, int rows, int k, int k_end) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads, row = index / 4, chunk = index % 4;
    const bool real = first + row < rows && k + chunk * 16 < k_end;
    const std::uint8_t* source = from + (real ? (first + row) * pitch + k + chunk * 16 : 0);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + place(row, chunk))), "l"(source),
                 "r"(real ? 16 : 0)
                 : "memory");
  }
}

/// Four 8x8 matrices of 16-bit values: 16 rows x 32 bytes from row `row` and chunk `chunk` on.
__device__ inline void load_fragment(std::uint32_t (&m)[4], const std::byte* slice, int row, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(slice + place(row + lane % 16, chunk + lane / 16)))
               : "memory");
}

__global__ void __launch_bounds__(kThreads, 2) int8_product_mma(const ByteProblem p, int tiles_n) {
  extern __shared__ __align__(128) std::byte memory[];
  const int first_m = static_cast<int>(blockIdx.x) / tiles_n * kTile, first_n = static_cast<int>(blockIdx.x) % tiles_n * kTile;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, row = warp / 4 * 64,
            column = warp % 4 * 32;
  const int slices = (p.k + kSlice - 1) / kSlice;
  const auto copy = [&](int slice) {
    std::byte* stage = memory + slice % kStages * kStageBytes;
    if (slice < slices) {
      copy_slice(stage, p.a, p.a_pitch, first_m, p.m, slice * kSlice, p.k);
      copy_slice(stage + kSliceBytes, p.b, p.b_pitch, first_n, p.n, slice * kSlice, p.k);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  int sums[4][4][4] = {};
  for (int slice = 0; slice < kStages - 1; ++slice) copy(slice);
  for (int slice = 0; slice < slices; ++slice) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    copy(slice + kStages - 1);
    const std::byte* stage = memory + slice % kStages * kStageBytes;
#pragma unroll
    for (int step = 0; step < kSlice / 32; ++step) {
      std::uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_fragment(a[i], stage, row + i * 16, step * 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) load_fragment(b[j], stage + kSliceBytes, column + j * 16, step * 2);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        int(&d)[4] = sums[i / 4][i % 4];
        const std::uint32_t(&x)[4] = a[i / 4];
        const std::uint32_t low = b[i % 4 / 2][i % 2], high = b[i % 4 / 2][i % 2 + 2];
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(low), "r"(high));
      }
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
