#pragma once
/// The Hopper main loop of MSFP products, D = epilogue(A * B^T).
///
/// Mapping:  persistent thread blocks, tiles of 128 x 256, clusters of two that lie one above the other and share B. One producer thread
///           copies 64 columns at a time: A's packed codes, its exponents, and B in bf16. Two consumer warpgroups, 64 rows each, decode A into
///           wgmma's register operand, the next 64 columns while these are multiplied. The first begins every tile some blocks ahead of the
///           second, so that one's epilogue runs under the other's products.
/// Decoding: B once, into memory that stays in the second-level cache: the panels of 256 rows that the first tiles read by a kernel in front, the
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
#include "kernels/cuda/sm90/wgmma_registers.cuh"

namespace narrow::cuda::sm90 {

template <int kBits_, int kStages_ = 5, int kBoxes_ = 1>
struct MsfpTile {
  static constexpr int kBits = kBits_, kTileM = 128, kTileN = 256, kDepth = 64, kStages = kStages_, kCluster = 2, kBoxes = kBoxes_;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kCount = kTileN / 2;  ///< sums of a thread
  static constexpr int kRowBytesA = kDepth * kBits / 8;
  static constexpr int kBytesB = kTileN * kDepth * 2, kBytesA = kTileM * kRowBytesA, kExponentBytes = kTileM * 4;
  static constexpr int kCopiedBytes = kBytesB + kBytesA + kExponentBytes, kStageBytes = (kCopiedBytes + 1023) / 1024 * 1024;
  static constexpr int kShared = 1024 + kStages * kStageBytes + kConsumers * 4 * kBoxes * kOutputBoxBytes + (2 * kStages + 1) * static_cast<int>(sizeof(Barrier));
  static_assert(kShared <= 232448);
};

struct MsfpParams {
  int m, n, blocks;  ///< blocks of 64 columns, an even number
  int tiles_m, tiles_n, tiles, workers, band;  ///< in units of a cluster's tile
  int lead;                                    ///< blocks that the first warpgroup begins a tile ahead of the second
  bool boxed;                                  ///< D leaves by tensor copies: aligned rows, nothing in the epilogue
  MsfpView b;                                  ///< packed
  uint4* decoded;                              ///< B in bf16, the panels from first_panel on still to be written
  int first_panel;
  std::uint32_t* done;                         ///< [panel of 256 rows of B]: chunks of it that are written
  std::uint32_t* next_chunk;                   ///< of the panels from first_panel on: chunks that are taken
  const std::uint32_t* exponents;              ///< of A
  std::int64_t exponent_rows;
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
  Barrier* ahead;

  __device__ explicit MsfpShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    full = reinterpret_cast<Barrier*>(staging + T::kConsumers * 4 * T::kBoxes * kOutputBoxBytes);
    empty = full + T::kStages;
    ahead = empty + T::kStages;
  }
  __device__ std::byte* b(int stage) const { return tiles + stage * T::kStageBytes; }
  __device__ std::byte* a(int stage) const { return b(stage) + T::kBytesB; }
  __device__ std::uint32_t* exponents(int stage) const { return reinterpret_cast<std::uint32_t*>(a(stage) + T::kBytesA); }
};

/// The first row and column of D of this thread block's part of a tile: bands of `band` tiles along m, and inside a band m first.
template <class T>
__device__ inline int2 place_of_msfp(const MsfpParams& p, int tile, int rank) {
  const int per_band = p.band * p.tiles_n, which = tile / per_band, first = which * p.band, inside = tile - which * per_band;
  const int height = min(p.tiles_m - first, p.band);
  return {((first + inside % height) * T::kCluster + rank) * T::kTileM, inside / height * T::kTileN};
}

/// Waits until a panel of B is decoded, and makes it visible to tensor copies of this thread. A panel has as many chunks as a row has boxes.
__device__ inline void wait_for_panel(const MsfpParams& p, int panel) {
  if (panel < p.first_panel) return;
  const auto chunks = static_cast<std::uint32_t>(p.b.depth / kMsfpBox);
  std::uint32_t done;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(p.done + panel) : "memory");
  } while (done < chunks);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// The warps beside the producer: they decode the panels of B that the first tiles do not need, while those are multiplied. Warps take chunks of
/// 256 boxes as they come, so that nobody waits for a thread block that is not there.
template <class T>
__device__ void decode_panels(const MsfpParams& p) {
  constexpr int kChunk = T::kTileN;  // boxes: a panel is kTileN rows
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t boxes = p.b.depth / kMsfpBox, first = p.first_panel * boxes, chunks = p.tiles_n * boxes, end = p.b.rows * boxes;
  wait_for_earlier_kernels();
  for (;;) {
    std::uint32_t taken = 0;
    if (lane == 0) taken = atomicAdd(p.next_chunk, 1u);
    const std::int64_t chunk = first + __shfl_sync(0xFFFFFFFFu, taken, 0);
    if (chunk >= chunks) return;
    for (std::int64_t index = chunk * kChunk + lane; index < min((chunk + 1) * kChunk, end); index += 32) decode_box(p.b, index, p.decoded);
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncwarp();
    if (lane == 0) {
      __threadfence();
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p.done + chunk / boxes) : "memory");
    }
  }
}

/// The producer: one thread.
template <class T>
__device__ void produce_msfp(const MsfpParams& p, const CUtensorMap& a, const CUtensorMap& b, const MsfpShared<T>& shared, int worker, int rank) {
  Ring<T::kStages> at;
  wait_for_earlier_kernels();
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    const int2 place = place_of_msfp<T>(p, tile, rank);
    const int exponent_row = place.x < p.m ? place.x : 0;  // a cluster's second tile may lie below the last row
    constexpr int kHalf = T::kTileN / 2;
    wait_for_panel(p, place.y / T::kTileN);
#pragma unroll 1
    for (int block = 0; block < p.blocks; ++block) {
      shared.empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.slot];
      full.arrive_expecting(T::kCopiedBytes);
      copy_box(shared.a(at.slot), a, block * T::kRowBytesA, place.x, full);
      copy_bulk(shared.exponents(at.slot), p.exponents + block * p.exponent_rows + exponent_row, T::kExponentBytes, full);
      copy_box_multicast(shared.b(at.slot) + rank * kHalf * 128, b, block * T::kDepth, place.y + rank * kHalf, full, 3);
      at.advance();
    }
  }
}

/// 64 rows x 64 columns of A as wgmma's register operand, four steps of 16.
struct MsfpFragments {
  std::uint32_t a[4][4];

  template <class T>
  __device__ void decode(const MsfpShared<T>& shared, int stage, int row, int quad) {
    const std::uint32_t exponents[2] = {shared.exponents(stage)[row], shared.exponents(stage)[row + 8]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int step = i / 2, h = i % 2, r = row + 8 * h;
      std::uint32_t codes;
      if constexpr (T::kBits == 8)  // 64-byte swizzle
        codes = *reinterpret_cast<const std::uint32_t*>(shared.a(stage) + r * 64 + ((step ^ (r / 2 % 4)) * 16) + quad * 4);
      else
        codes = *reinterpret_cast<const std::uint16_t*>(shared.a(stage) + r * 32 + step * 8 + quad * 2);
      const MsfpPairs pairs = msfp_pairs<T::kBits>(codes, msfp_factors<T::kBits>(exponents[h], step));
      a[step][h] = pairs.first;
      a[step][2 + h] = pairs.second;
    }
  }
};

template <class T>
__device__ inline void store_msfp_any(const MsfpParams& p, const MsfpShared<T>& shared, const float (&sums)[T::kCount], int row, int column) {
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
__device__ inline void store_msfp_boxes(const MsfpParams& p, const CUtensorMap& d, const MsfpShared<T>& shared, const float (&sums)[T::kCount], int row,
                                        int column, unsigned& boxes) {
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
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, quad = lane % 4;
  const std::uint32_t first_b = operand_word(shared_address(shared.b(0)));
  Ring<T::kStages> at;
  unsigned boxes = 0;
  float sums[T::kCount];
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;
  MsfpFragments even, odd;

  const auto release = [&](int slot) {
    __syncwarp();  // all lanes have read their codes
    if (lane < T::kCluster) arrive_remote(shared.empty[slot], static_cast<std::uint32_t>(lane));
  };
  const auto issue = [&](const MsfpFragments& fragments, int slot, bool add) {
    const std::uint32_t offset = __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(slot * (T::kStageBytes / 16)), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_registers<true>(sums, fragments.a[step], operand(first_b + offset + step * 2), add || step > 0);
    wgmma_commit();
  };

  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  unsigned tiles = 0;
  const auto lead = [&](int issued) {
    if (group == 0 && issued == p.lead && lane == 0) shared.ahead->arrive();
  };

  wait_for_earlier_kernels();  // from here on D is written
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    pin(sums);
    if (group == 1 && p.lead > 0) shared.ahead->wait(tiles++);
    shared.full[at.slot].wait(at.parity);
    even.decode(shared, at.slot, row, quad);
    int before = -1;  // the stage whose products may still run
#pragma unroll 1
    for (int block = 0; block < p.blocks; block += 2) {
      issue(even, at.slot, block > 0);
      lead(block + 1);
      wgmma_wait<1>();
      if (before >= 0) release(before);
      before = at.slot;
      at.advance();
      shared.full[at.slot].wait(at.parity);
      odd.decode(shared, at.slot, row, quad);
      issue(odd, at.slot, true);
      lead(block + 2);
      wgmma_wait<1>();
      release(before);
      before = at.slot;
      at.advance();
      if (block + 2 < p.blocks) {
        shared.full[at.slot].wait(at.parity);
        even.decode(shared, at.slot, row, quad);
      }
    }
    wgmma_wait<0>();
    release(before);
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
    shared.ahead->init(4);
    fence_barriers();
  }
  __syncthreads();
  cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<56>();
    if (threadIdx.x >= T::kConsumerThreads + 32)
      decode_panels<T>(p);
    else if (threadIdx.x == T::kConsumerThreads)
      produce_msfp<T>(p, a, b, shared, worker, rank);
  } else {
    take_registers<224>();
    consume_msfp<T>(p, d, shared, worker, rank);
  }
  cluster_sync();  // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
