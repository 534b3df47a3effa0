#pragma once
/// Thin wrappers around Hopper's own instructions (PTX, sm_90a): tensor copies on mbarriers, warpgroup products, register
/// reallocation, clusters, named barriers. One instruction each; no policy.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"

namespace narrow::cuda::sm90 {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// threadIdx.x, read where it stands: what an epilogue derives from it is not computed ahead and kept in registers through a main loop.
__device__ inline int thread_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
/// The opposite: a value that is kept in a register, not computed again wherever it is used.
__device__ inline std::uint32_t kept(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Clusters.

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of the cluster meet; shared memory written before is visible to all of them after.
__device__ inline void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

/// Arrives on the barrier at the same place in the shared memory of thread block `rank` of the cluster.
__device__ inline void arrive_remote(Barrier& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier.address()),
      "r"(rank)
      : "memory");
}

/// Sixteen bytes of the shared memory of thread block `rank`, at the same place as `here` in this one's.
__device__ inline float4 load_remote(const void* here, std::uint32_t rank) {
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}\n"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(shared_address(here)), "r"(rank)
      : "memory");
  return value;
}

// Tensor copies: a box of a matrix, whose shape and swizzle the map holds, from (column, row) on. Outside the matrix they read zeros.

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}

__device__ inline void copy_box(void* to, const CUtensorMap& map, int column, int row, Barrier& barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   shared_address(to)),
               "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier.address()), "r"(column), "r"(row)
               : "memory");
}

/// A box of a tensor of three dimensions, from (column, row, plane) on.
__device__ inline void copy_box_3d(void* to, const CUtensorMap& map, int column, int row, int plane, Barrier& barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                   shared_address(to)),
               "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier.address()), "r"(column), "r"(row), "r"(plane)
               : "memory");
}
/// The same of a matrix in stripes of 32 columns: the box has several stripes from `stripe` on, one after the other.
__device__ inline void copy_stripes(void* to, const CUtensorMap& map, int row, int stripe, Barrier& barrier) {
  copy_box_3d(to, map, 0, row, stripe, barrier);
}

/// The same box into every thread block of `mask`, each completing on its own barrier at the same place.
__device__ inline void copy_box_multicast(void* to, const CUtensorMap& map, int column, int row, Barrier& barrier, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], "
      "%5;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier.address()), "r"(column), "r"(row), "h"(mask)
      : "memory");
}

/// A box from shared to global memory; parts outside the matrix are not written. Reads shared memory in the background.
__device__ inline void copy_box_out(const CUtensorMap& map, int column, int row, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(reinterpret_cast<std::uint64_t>(&map)),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all committed groups of stores of this thread but the last kPending have read their shared memory.
template <int kPending>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Makes this thread's writes to shared memory visible to tensor copies.
__device__ inline void fence_shared_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Brings a box into the second-level cache; harmless before the data's last writer is done, since that cache is where writes meet.
__device__ inline void prefetch_box(const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(reinterpret_cast<std::uint64_t>(&map)), "r"(column),
               "r"(row)
               : "memory");
}

/// Brings bytes (a multiple of 16) into the second-level cache; harmless as above.
__device__ inline void prefetch_bulk(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// Sixteen bytes into the shared memory of thread block `rank`, at the same place as `here` in this one's; counts on the barrier at the
/// same place as `barrier` there when they are visible.
__device__ inline void send_remote(const void* here, float4 value, Barrier& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, counter;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [counter];\n"
      "}\n" ::"r"(shared_address(here)),
      "r"(barrier.address()), "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

/// Four bytes, by the ordinary way into shared memory; arrives on the barrier (which must count this arrival) when they are there.
__device__ inline void copy_word(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void wait_words() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline void arrive_after_words(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address()) : "memory");
}

// Warpgroups.

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ inline void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/// The same; says whether all threads had `here`.
__device__ inline bool named_sync_and(int id, int threads, bool here) {
  std::uint32_t all;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.u32 in, %3, 0;\n"
      "barrier.cta.red.and.pred out, %1, %2, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}\n"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(here))
      : "memory");
  return all != 0;
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads or writes of accumulators across this point.
template <int kCount>
__device__ inline void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ inline void pin(int (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

/// The descriptor of a K-major operand in shared memory: rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
/// Its low word grows by bytes / 16 with the address.
__device__ inline std::uint32_t operand_word(std::uint32_t address) { return ((address & 0x3FFFFu) >> 4) | 0x10000u; }
__device__ inline std::uint64_t operand(std::uint32_t word) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kGroupOfRows = std::uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupOfRows | word;
}
/// The same of a stripe: rows of 32 bytes, 32-byte swizzle, groups of 8 rows 256 bytes apart.
__device__ inline std::uint64_t stripe_operand(std::uint32_t word) {
  constexpr std::uint64_t kSwizzle32 = std::uint64_t{3} << 62, kGroupOfRows = std::uint64_t{256 >> 4} << 32;
  return kSwizzle32 | kGroupOfRows | word;
}

// Kernels in a row: the next one's thread blocks may come while this one's leave, and wait for its results.

__device__ inline void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Words in memory by which thread blocks tell each other that what they wrote before is there.

__device__ inline void store_release(unsigned long long* to, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// 1 / value, of normal numbers, to within an ulp.
__device__ inline float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ inline float load_shared(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void load_shared(std::uint32_t address, std::uint32_t* four) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_shared_pair(std::uint32_t address, std::uint32_t* two) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(two[0]), "=r"(two[1]) : "r"(address) : "memory");
}
__device__ inline void store_shared(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ inline void store_shared(std::uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
__device__ inline void store_shared(std::uint32_t address, std::uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

/// Four 8x8 matrices of 16-bit values to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// The same of two; of lanes 16 and on the address does not count.
__device__ inline void store_two_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

/// The same, each matrix transposed: row r of memory gets column r of the fragment.
__device__ inline void store_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// The inverse: four 8x8 matrices of 16-bit values from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&values)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}

/// D[16, 8] += A[16, 16] * B[8, 16]^T of one warp, in the fragments of wgmma_registers.cuh (d[0..3] for one i).
template <bool kBf16>
__device__ inline void mma_16x8(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kBf16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace narrow::cuda::sm90
