#pragma once
/// The Hopper main loop of MSFP products, D = epilogue(A * B^T).
///
/// Mapping:  persistent thread blocks, tiles of 128 x 256, clusters of two that lie one above the other and share B. One producer thread
///           copies 64 columns of A and B in bf16 at a time; two consumer warpgroups, 64 rows each, multiply.
/// Decoding: once, into memory that stays in the second-level cache: the panels of 256 rows that the first tiles read by a kernel in front,
/// the
///           others by the three warps beside the producer, while tiles are multiplied. A counter per panel says when it is there.
/// Requires: compute capability 9.0; prepared operands (msfp_product.h).
/// Bound:    arithmetic (2,048 products a cycle and multiprocessor) and power. Meaning: reference/msfp.cc within the bound of the numerics
///           contract: products are exact, sums are the tensor cores' in fp32.

#include "kernels/cuda/msfp_decode.cuh"
#include "kernels/cuda/msfp_product.h"
#include "kernels/cuda/product_finish.cuh"
#include "kernels/cuda/sm90/output_box.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/wgmma_bf16.cuh"

namespace narrow::cuda::sm90 {

/// What is known when the kernel is compiled.
struct MsfpTile {
  static constexpr int kTileM = 128, kTileN = 256, kDepth = 64, kStages = 4, kCluster = 2, kBoxes = 1;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kCount = kTileN / 2;  ///< sums of a thread
  static constexpr int kBytesA = kTileM * kDepth * 2, kBytesB = kTileN * kDepth * 2, kStageBytes = kBytesA + kBytesB;
  static constexpr int kShared =
      1024 + kStages * kStageBytes + kConsumers * 4 * kBoxes * kOutputBoxBytes + 2 * kStages * static_cast<int>(sizeof(Barrier));
  static_assert(kShared <= 232448 && kTileM * kCluster == kMsfpPanel && kTileN == kMsfpPanel);
};

/// An operand: packed, in bf16, and which panels of kMsfpPanel rows of that are there. The kernel in front writes the first ones.
struct MsfpOperand {
  MsfpView packed;
  uint4* decoded;
  int panels, first_panel;  ///< panels from first_panel on are decoded beside the products
  std::uint32_t* done;      ///< [panels]: chunks of them that are written
};

struct MsfpParams {
  int m, n, blocks;                            ///< blocks of 64 columns
  int tiles_m, tiles_n, tiles, workers, band;  ///< in units of a cluster's tile
  bool boxed;                                  ///< D leaves by tensor copies: aligned rows, nothing in the epilogue
  MsfpOperand a, b;
  std::uint32_t* next_chunk;  ///< of b's panels and then a's: chunks that are taken
  ByteEpilogue epilogue;
  void* d;
  std::int64_t pitch;
};

/// The thread block's shared memory.
template <class T>
struct MsfpShared {
  std::byte* tiles;
  std::byte* staging;
  Barrier* full;
  Barrier* empty;

  __device__ explicit MsfpShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    full = reinterpret_cast<Barrier*>(staging + T::kConsumers * 4 * T::kBoxes * kOutputBoxBytes);
    empty = full + T::kStages;
  }
  __device__ std::byte* a(int stage) const { return tiles + stage * T::kStageBytes; }
  __device__ std::byte* b(int stage) const { return a(stage) + T::kBytesA; }
};

/// The first row and column of D of this thread block's part of a tile: bands of `band` tiles along m, and inside a band m first.
template <class T>
__device__ inline int2 place_of_msfp(const MsfpParams& p, int tile, int rank) {
  const int per_band = p.band * p.tiles_n, which = tile / per_band, first = which * p.band, inside = tile - which * per_band;
  const int height = min(p.tiles_m - first, p.band);
  return {((first + inside % height) * T::kCluster + rank) * T::kTileM, inside / height * T::kTileN};
}

/// Waits until a panel is decoded. A panel has as many chunks as a row has boxes.
__device__ inline void wait_for_panel(const MsfpOperand& operand, int panel) {
  if (panel < operand.first_panel || panel >= operand.panels) return;
  const auto chunks = static_cast<std::uint32_t>(operand.packed.depth / kMsfpBox);
  std::uint32_t done;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(operand.done + panel) : "memory");
  } while (done < chunks);
}

/// The warps beside the producer: they decode the panels that the first tiles do not need, while those are multiplied; B's before A's,
/// which the next band of tiles reads. Warps take chunks of as many boxes as a panel has rows, as they come, so that nobody waits for a
/// thread block that is not there.
__device__ inline void decode_panels(const MsfpParams& p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t boxes = p.b.packed.depth / kMsfpBox;
  const std::int64_t of_b = (p.b.panels - p.b.first_panel) * boxes, of_a = (p.a.panels - p.a.first_panel) * boxes;
  wait_for_earlier_kernels();
  for (;;) {
    std::uint32_t taken = 0;
    if (lane == 0) taken = atomicAdd(p.next_chunk, 1u);
    taken = __shfl_sync(0xFFFFFFFFu, taken, 0);
    if (taken >= of_b + of_a) return;
    const MsfpOperand& operand = taken < of_b ? p.b : p.a;
    const std::int64_t chunk = (taken < of_b ? taken : taken - of_b) + operand.first_panel * boxes;
    if (operand.packed.bits == 8)
      decode_chunk<8>(operand.packed, chunk * kMsfpPanel, lane, operand.decoded);
    else
      decode_chunk<4>(operand.packed, chunk * kMsfpPanel, lane, operand.decoded);
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncwarp();
    if (lane == 0) {
      __threadfence();
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(operand.done + chunk / boxes) : "memory");
    }
  }
}

/// The producer: one thread.
template <class T>
__device__ void produce_msfp(const MsfpParams& p, const CUtensorMap& a, const CUtensorMap& b, const MsfpShared<T>& shared, int worker,
                             int rank) {
  Ring<T::kStages> at;
  wait_for_earlier_kernels();
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    const int2 place = place_of_msfp<T>(p, tile, rank);
    constexpr int kHalf = T::kTileN / 2;
    wait_for_panel(p.a, place.x / kMsfpPanel);
    wait_for_panel(p.b, place.y / kMsfpPanel);
    asm volatile("fence.proxy.async.global;" ::: "memory");  // what those warps wrote is visible to the copies
#pragma unroll 1
    for (int block = 0; block < p.blocks; ++block) {
      shared.empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.slot];
      full.arrive_expecting(T::kStageBytes);
      copy_box(shared.a(at.slot), a, block * T::kDepth, place.x, full);
      copy_box_multicast(shared.b(at.slot) + rank * kHalf * 128, b, block * T::kDepth, place.y + rank * kHalf, full, 3);
      at.advance();
    }
  }
}

template <class T>
__device__ inline void store_msfp_any(const MsfpParams& p, const MsfpShared<T>& shared, const float (&sums)[T::kCount], int row,
                                      int column) {
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32;
  float* const values = reinterpret_cast<float*>(shared.staging + warp * T::kBoxes * kOutputBoxBytes);  // [16][32], columns exchanged
#pragma unroll 1
  for (int part = 0; part < T::kCount / 16; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) {
      const int r = lane / 4 + i / 2 % 2 * 8, c = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
      if (i / 16 == part) values[r * 32 + (c ^ (r % 8 * 4))] = sums[i];
    }
    __syncwarp();
    const int c = column + part * 32 + lane;
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int d_row = row + warp * 16 + r;
      if (d_row >= p.m || c >= p.n) continue;
      finish_product(p.epilogue, p.d, 4.0f * values[r * 32 + (lane ^ (r % 8 * 4))], d_row, c, p.n, d_row * p.pitch + c);
    }
  }
  __syncwarp();
}

/// Both operands were halved: sums are four times what the tensor cores have.
template <class T, int kElementBytes>
__device__ inline void store_msfp_boxes(const MsfpParams& p, const CUtensorMap& d, const MsfpShared<T>& shared,
                                        const float (&sums)[T::kCount], int row, int column, unsigned& boxes) {
  constexpr int kSums = 64 / kElementBytes;
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32;
  std::byte* const staging = shared.staging + warp * T::kBoxes * kOutputBoxBytes;
#pragma unroll
  for (int from = 0; from < T::kCount; from += kSums) {
    std::byte* const box = staging + boxes++ % T::kBoxes * kOutputBoxBytes;
    float v[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] = 4.0f * sums[from + i];
    if (lane == 0) wait_stores_read<T::kBoxes - 1>();
    __syncwarp();
    fill_output_box<kElementBytes>(p.epilogue.out == DType::kF16, v, box);
    fence_shared_for_copies();
    __syncwarp();
    if (lane == 0) {
      copy_box_out(d, column + from * 2, row + warp * 16, box);
      commit_stores();
    }
  }
}

/// A consumer warpgroup.
template <class T>
__device__ void consume_msfp(const MsfpParams& p, const CUtensorMap& d, const MsfpShared<T>& shared, int worker, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const std::uint32_t first_a = operand_word(shared_address(shared.a(0)) + group * 64 * 128),
                      first_b = operand_word(shared_address(shared.b(0)));
  Ring<T::kStages> at;
  unsigned boxes = 0;
  float sums[T::kCount];
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;

  const auto release = [&](int slot) {
    if (lane < T::kCluster) arrive_remote(shared.empty[slot], static_cast<std::uint32_t>(lane));
  };
  const auto issue = [&](int slot, bool add) {
    const std::uint32_t offset = __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(slot * (T::kStageBytes / 16)), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_bf16(sums, operand(first_a + offset + step * 2), operand(first_b + offset + step * 2), add || step > 0);
    wgmma_commit();
  };

  wait_for_earlier_kernels();  // from here on D is written
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    pin(sums);
    shared.full[at.slot].wait(at.parity);
    issue(at.slot, false);
#pragma unroll 1
    for (int block = 1; block < p.blocks; ++block) {
      Ring<T::kStages> next = at;
      next.advance();
      shared.full[next.slot].wait(next.parity);
      issue(next.slot, true);
      wgmma_wait<1>();
      release(at.slot);
      at = next;
    }
    wgmma_wait<0>();
    release(at.slot);
    at.advance();
    pin(sums);
    const int2 place = place_of_msfp<T>(p, tile, rank);
    if (!p.boxed)
      store_msfp_any<T>(p, shared, sums, place.x, place.y);
    else if (p.epilogue.out == DType::kF32)
      store_msfp_boxes<T, 4>(p, d, shared, sums, place.x, place.y, boxes);
    else
      store_msfp_boxes<T, 2>(p, d, shared, sums, place.x, place.y, boxes);
  }
  if (lane == 0) wait_stores_read<0>();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    msfp_product(const __grid_constant__ MsfpParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const MsfpShared<T> shared(memory);
  const int rank = static_cast<int>(cluster_rank()), worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    if (p.boxed) prefetch_map(d);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    fence_barriers();
  }
  __syncthreads();
  cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<56>();
    if (threadIdx.x >= T::kConsumerThreads + 32)
      decode_panels(p);
    else if (threadIdx.x == T::kConsumerThreads)
      produce_msfp<T>(p, a, b, shared, worker, rank);
  } else {
    take_registers<224>();
    consume_msfp<T>(p, d, shared, worker, rank);
  }
  cluster_sync();  // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
