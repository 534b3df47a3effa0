#pragma once
/// The parts of products by mma.sync: slices of rows copied by cp.async into shared memory, fragments read from there by ldmatrix.
/// Compute capability 8.0 and later.

#include <cstddef>
#include <cstdint>

namespace narrow::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Up to 16 bytes, and zeros after them. Without any the source must be an address all the same.
__device__ inline void copy_chunk(std::byte* to, const std::uint8_t* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Rows of kBytes bytes in shared memory, 64 or 128, whose chunks of 16 bytes are exchanged so that eight rows touch all banks.
template <int kBytes>
struct SliceRows {
  static constexpr int kChunks = kBytes / 16;
  __device__ static int place(int row, int chunk) { return row * kBytes + (chunk ^ (row / (8 / kChunks) % kChunks)) * 16; }

  /// kRows rows from `first` on, columns [k, k + kBytes), by kThreads threads; zeros from row `rows` and column k_end on.
  template <int kRows, int kThreads>
  __device__ static void copy(std::byte* to, const std::uint8_t* from, std::int64_t pitch, std::int64_t first, std::int64_t rows, int k,
                              int k_end) {
    static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads, row = index / kChunks, chunk = index % kChunks;
      const int bytes = first + row < rows ? max(0, min(16, k_end - k - chunk * 16)) : 0;
      copy_chunk(to + place(row, chunk), from + (bytes > 0 ? (first + row) * pitch + k + chunk * 16 : 0), bytes);
    }
  }

  /// Four 8x8 matrices of 16-bit values: 16 rows x 32 bytes from row `row` and chunk `chunk` on.
  __device__ static void load_fragment(std::uint32_t (&m)[4], const std::byte* slice, int row, int chunk) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(slice + place(row + lane % 16, chunk + lane / 16)))
                 : "memory");
  }
};

/// d += a * b: 16 x 32 by 32 x 8 signed bytes.
__device__ inline void multiply_bytes(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t low, std::uint32_t high) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

}  // namespace narrow::cuda
