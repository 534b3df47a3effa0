#pragma once
/// The Hopper main loop of MSFP products, D = epilogue(A * B^T).
///
/// Mapping:  persistent thread blocks, tiles of 128 x 256, clusters of two that lie one above the other and share B. One producer thread
///           copies 64 columns of A and B in bf16 at a time; two consumer warpgroups, 64 rows each, multiply.
/// Decoding: once, into memory that stays in the second-level cache, by the three warps beside the producer, while tiles are multiplied: a
///           few columns ahead of the first tiles, whose first chunks of columns some of the consumers decode, too, before they have
///           anything to multiply. A counter per chunk of a panel of 256 rows says when it is there.
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
  static constexpr int kTileM = 128, kTileN = 256, kDepth = 64, kStages = 4, kCluster = 2;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * 128, kThreads = kConsumerThreads + 128;
  static constexpr int kEarlyWarps = 4;      ///< consumers that begin with a part of a chunk each
  static constexpr int kCount = kTileN / 2;  ///< sums of a thread
  static constexpr int kBytesA = kTileM * kDepth * 2, kBytesB = kTileN * kDepth * 2, kStageBytes = kBytesA + kBytesB;
  static constexpr int kShared =
      1024 + kStages * kStageBytes + kConsumers * 4 * kOutputBoxBytes + (2 * kStages + 1) * static_cast<int>(sizeof(Barrier));
  static_assert(kShared <= 232448 && kTileM * kCluster == kMsfpPanel && kTileN == kMsfpPanel);
};

/// An operand: packed, and in bf16 panel by panel of kMsfpPanel rows, the chunks of which are counted.
struct MsfpOperand {
  MsfpView packed;
  uint4* decoded;
  int panels, first_panels;  ///< those that the first tiles read
  std::uint32_t* done;       ///< [panels][chunks]: parts of them that are written
};

struct MsfpParams {
  int m, n, blocks, chunks;                    ///< blocks of 64 columns, chunks of kMsfpChunk
  int tiles_m, tiles_n, tiles, workers, band;  ///< in units of a cluster's tile
  bool direct;                                 ///< D leaves straight from registers: aligned rows, n % 8 = 0, nothing in the epilogue
  MsfpOperand a, b;                            ///< b's decoded rows are dealt (msfp_decode.cuh)
  std::uint32_t* taken;                        ///< parts of chunks that warps have taken
  ByteEpilogue epilogue;
  void* d;
  std::int64_t pitch;
};
constexpr int kMsfpParts = kMsfpPanel / kMsfpRowsAtOnce;

/// The thread block's shared memory.
template <class T>
struct MsfpShared {
  std::byte* tiles;
  std::byte* staging;
  Barrier* full;
  Barrier* empty;
  std::uint32_t* first_part;  ///< of those that the thread block decodes first

  __device__ explicit MsfpShared(std::byte* memory) {
    tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staging = tiles + T::kStages * T::kStageBytes;
    full = reinterpret_cast<Barrier*>(staging + T::kConsumers * 4 * kOutputBoxBytes);
    empty = full + T::kStages;
    first_part = reinterpret_cast<std::uint32_t*>(empty + T::kStages);
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

/// Between writes to global memory and tensor copies of it, on both sides.
__device__ inline void fence_global_for_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Parts of chunks in the order in which they are decoded: those of the first panels chunk by chunk, since their tiles run side by side;
/// then the other panels, B's before A's, which the next band of tiles reads.
struct MsfpPart {
  bool of_a;
  int panel, chunk, part;
};
__device__ inline std::uint32_t msfp_parts_first(const MsfpParams& p) {
  return static_cast<std::uint32_t>(p.chunks * (p.a.first_panels + p.b.first_panels) * kMsfpParts);
}
__device__ inline std::uint32_t msfp_parts(const MsfpParams& p) {
  const int others = p.a.panels - p.a.first_panels + p.b.panels - p.b.first_panels;
  return msfp_parts_first(p) + static_cast<std::uint32_t>(p.chunks * others * kMsfpParts);
}
__device__ inline MsfpPart msfp_part(const MsfpParams& p, std::uint32_t number) {
  const std::uint32_t first = msfp_parts_first(p);
  const bool early = number < first;
  int index = static_cast<int>(early ? number : number - first);
  const int part = index % kMsfpParts;
  index /= kMsfpParts;
  if (early) {
    const int panels = p.a.first_panels + p.b.first_panels, panel = index % panels, chunk = index / panels;
    const bool of_a = panel < p.a.first_panels;
    return {of_a, of_a ? panel : panel - p.a.first_panels, chunk, part};
  }
  const int panel = index / p.chunks, chunk = index % p.chunks, of_b = p.b.panels - p.b.first_panels;
  return {panel >= of_b, panel < of_b ? panel + p.b.first_panels : panel - of_b + p.a.first_panels, chunk, part};
}

/// Fields are chosen one by one: a reference to one of two parameters would be loaded through a pointer.
__device__ inline void load_part(const MsfpParams& p, const MsfpPart& part, int lane, MsfpRows& rows) {
  const MsfpView &a = p.a.packed, &b = p.b.packed;
  const bool of_a = part.of_a;
  const MsfpView view{of_a ? a.rows : b.rows, a.depth, of_a ? a.bits : b.bits, of_a ? a.codes : b.codes, of_a ? a.exponents : b.exponents};
  rows.load(view, part.panel * kMsfpPanel + part.part * kMsfpRowsAtOnce, part.chunk, lane);
}
template <class Call>
__device__ inline void store_part(const MsfpParams& p, const MsfpPart& part, const MsfpRows& rows, const Call& before_stores) {
  rows.store(!part.of_a, p.a.packed.depth / 8, part.of_a ? p.a.decoded : p.b.decoded, before_stores);
}
/// A warp has stored a part.
__device__ inline void count_part(std::uint32_t* counter) {
  fence_global_for_copies();
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline std::uint32_t* counter_of(const MsfpParams& p, const MsfpPart& part) {
  return (part.of_a ? p.a.done : p.b.done) + part.panel * p.chunks + part.chunk;
}

/// A consumer's first work.
__device__ inline void decode_early(const MsfpParams& p, std::uint32_t number) {
  if (number >= msfp_parts(p)) return;
  const MsfpPart part = msfp_part(p, number);
  MsfpRows rows;
  load_part(p, part, static_cast<int>(threadIdx.x) % 32, rows);
  store_part(p, part, rows, [] {});
  count_part(counter_of(p, part));
}

/// The warps beside the producer, from part `number` on. They take parts as they come, so that nobody waits for a thread block that is not
/// there. While a part is decoded the next one is loaded, and the number of the one after that is on its way. A part is counted when the
/// next one is about to be stored: the warp then waits for its stores and for what it loads next together.
__device__ inline void decode_panels(const MsfpParams& p, std::uint32_t number) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t parts = msfp_parts(p);
  const auto take = [&] { return lane == 0 ? atomicAdd(p.taken, 1u) : 0u; };
  if (number >= parts) return;
  std::uint32_t next = take();
  std::uint32_t* stored = nullptr;  // the counter of the part before
  MsfpPart part = msfp_part(p, number);
  MsfpRows rows;
  load_part(p, part, lane, rows);
  for (;;) {
    number = __shfl_sync(0xFFFFFFFFu, next, 0);
    const bool more = number < parts;
    const MsfpPart next_part = msfp_part(p, more ? number : 0u);
    MsfpRows next_rows;
    if (more) {
      next = take();
      load_part(p, next_part, lane, next_rows);
    }
    store_part(p, part, rows, [&] {
      if (stored != nullptr) count_part(stored);
    });
    stored = counter_of(p, part);
    if (!more) break;
    part = next_part;
    rows = next_rows;
  }
  count_part(stored);
}

__device__ inline std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// The producer: a warp, of which the first lane copies, and the first two wait for chunks of A and of B.
template <class T>
__device__ void produce_msfp(const MsfpParams& p, const CUtensorMap& a, const CUtensorMap& b, const MsfpShared<T>& shared, int worker,
                             int rank) {
  constexpr int kHalf = T::kTileN / 2, kBlocks = kMsfpChunk / T::kDepth;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int panels = lane == 0 ? p.a.panels : p.b.panels;
  const std::uint32_t* const done = lane == 0 ? p.a.done : p.b.done;
  Ring<T::kStages> at;
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    const int2 place = place_of_msfp<T>(p, tile, rank);
    const int panel = (lane == 0 ? place.x : place.y) / kMsfpPanel;
    const bool waits = lane < 2 && panel < panels;
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      if (waits)
        while (load_acquire(done + panel * p.chunks + chunk) < kMsfpParts) {
        }
      __syncwarp();
      fence_global_for_copies();
      if (lane == 0) {
        const int end = min((chunk + 1) * kBlocks, p.blocks);
#pragma unroll 1
        for (int block = chunk * kBlocks; block < end; ++block) {
          shared.empty[at.slot].wait(at.parity ^ 1u);
          Barrier& full = shared.full[at.slot];
          full.arrive_expecting(T::kStageBytes);
          copy_box(shared.a(at.slot), a, block * T::kDepth, place.x, full);
          copy_box_multicast(shared.b(at.slot) + rank * kHalf * 128, b, block * T::kDepth, place.y + rank * kHalf, full, 3);
          at.advance();
        }
      }
    }
  }
}

template <class T>
__device__ inline void store_msfp_any(const MsfpParams& p, const MsfpShared<T>& shared, const float (&sums)[T::kCount], int row,
                                      int column) {
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32;
  float* const values = reinterpret_cast<float*>(shared.staging + warp * kOutputBoxBytes);  // [16][32], columns exchanged
#pragma unroll 1
  for (int part = 0; part < T::kCount / 16; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) {
      const int r = lane / 4 + i / 2 % 2 * 8, c = lane % 4 * 8 + i / 4 % 4 * 2 + i % 2;
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

/// Sums straight to memory: with B dealt, a thread has eight neighbouring columns of a row. Both operands were halved: sums are four times
/// what the tensor cores have.
template <class T, int kElementBytes>
__device__ inline void store_msfp_eights(const MsfpParams& p, const float (&sums)[T::kCount], int row, int column) {
  const int thread = thread_here(), lane = thread % 32;
  const bool half = p.epilogue.out == DType::kF16;
  const int first_row = row + thread / 32 * 16 + lane / 4, first_column = column + lane % 4 * 8;
  std::byte* const to = static_cast<std::byte*>(p.d) + (first_row * p.pitch + first_column) * kElementBytes;
#pragma unroll
  for (int g = 0; g < T::kTileN / 32; ++g)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = 4.0f * sums[g * 16 + i / 2 * 4 + h * 2 + i % 2];
      if (first_column + g * 32 >= p.n || first_row + h * 8 >= p.m) continue;
      auto* const eight = reinterpret_cast<uint4*>(to + (h * 8 * p.pitch + g * 32) * kElementBytes);
      if constexpr (kElementBytes == 2) {
        __stcs(eight,
               uint4{pack_two(half, v[0], v[1]), pack_two(half, v[2], v[3]), pack_two(half, v[4], v[5]), pack_two(half, v[6], v[7])});
      } else {
        __stcs(reinterpret_cast<float4*>(eight), float4{v[0], v[1], v[2], v[3]});
        __stcs(reinterpret_cast<float4*>(eight) + 1, float4{v[4], v[5], v[6], v[7]});
      }
    }
}

/// A consumer warpgroup.
template <class T>
__device__ void consume_msfp(const MsfpParams& p, const MsfpShared<T>& shared, int worker, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const std::uint32_t first_a = operand_word(shared_address(shared.a(0)) + group * 64 * 128),
                      first_b = operand_word(shared_address(shared.b(0)));
  Ring<T::kStages> at;
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
    if (!p.direct)
      store_msfp_any<T>(p, shared, sums, place.x, place.y);
    else if (p.epilogue.out == DType::kF32)
      store_msfp_eights<T, 4>(p, sums, place.x, place.y);
    else
      store_msfp_eights<T, 2>(p, sums, place.x, place.y);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    msfp_product(const __grid_constant__ MsfpParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b) {
  extern __shared__ std::byte memory[];
  const MsfpShared<T> shared(memory);
  const int rank = static_cast<int>(cluster_rank()), worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    fence_barriers();
  }
  let_next_kernel_start();
  cluster_sync();
  wait_for_earlier_kernels();
  constexpr int kWarps = T::kThreads / 32, kConsumerWarps = T::kConsumerThreads / 32;
  if (threadIdx.x == 0) *shared.first_part = atomicAdd(p.taken, static_cast<unsigned>(kWarps - 1 - kConsumerWarps + T::kEarlyWarps));
  __syncthreads();
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const std::uint32_t part = *shared.first_part + static_cast<std::uint32_t>(warp);

  if (warp >= kConsumerWarps) {
    give_registers<152>();
    if (warp > kConsumerWarps)
      decode_panels(p, part - (kConsumerWarps + 1 - T::kEarlyWarps));
    else
      produce_msfp<T>(p, a, b, shared, worker, rank);
  } else {
    take_registers<176>();
    if (warp < T::kEarlyWarps) decode_early(p, part);
    consume_msfp<T>(p, shared, worker, rank);
  }
  cluster_sync();  // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
