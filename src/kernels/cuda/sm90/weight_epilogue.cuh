#pragma once
/// From sums in a warpgroup's registers to the output: adding up what several have, factors, conversion, stores.

#include "kernels/cuda/sm90/elect.cuh"
#include "kernels/cuda/sm90/weight_tile.cuh"

namespace narrow::cuda::sm90 {

/// Adds the sums of the two warpgroups that have taken a row group's chunks in turn, piece by piece through the memory that stores leave
/// from. True in the first, which has them then.
template <class T>
__device__ bool add_depths(const WeightShared<T>& shared, int row_group, int depth_group, float (&sums)[T::kCount]) {
  constexpr int kBarrier = 8, kFloats = T::kGroupStoreBytes / 512;  // of a thread and a piece
  static_assert(T::kCount % kFloats == 0 || T::kCount < kFloats);
  const int thread = thread_here() % 128, barrier = kBarrier + row_group;
  float4* words = reinterpret_cast<float4*>(shared.stores + row_group * T::kGroupStoreBytes) + thread;
  if (depth_group == 0 && thread < 32) wait_stores_read<0>();
#pragma unroll
  for (int first = 0; first < T::kCount; first += kFloats) {
    constexpr int kFours = std::min(kFloats, T::kCount) / 4;
    named_sync(barrier, 256);
    if (depth_group > 0)
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float* s = sums + first + 4 * i;
        words[i * 128] = {s[0], s[1], s[2], s[3]};
      }
    named_sync(barrier, 256);
    if (depth_group == 0)
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 more = words[i * 128];
        float* s = sums + first + 4 * i;
        s[0] += more.x, s[1] += more.y, s[2] += more.z, s[3] += more.w;
      }
  }
  return depth_group == 0;
}

/// Adds the sums of all thread blocks that share the tile. True in the one that has them all then, of every tile another one, so that none
/// falls behind. It tells the others that it has read theirs, but for the last tile: they may be gone.
template <class T>
__device__ bool add_partials(const WeightParams& p, const WeightShared<T>& shared, int row_group, int rank, unsigned use, bool is_last,
                             float (&sums)[T::kCount]) {
  if (p.parts == 1) return true;
  const int thread = thread_here() % 128, lane = thread % 32, root = static_cast<int>(use % static_cast<unsigned>(p.parts));
  const auto words_of = [&](int partial) {
    return reinterpret_cast<float4*>(shared.partials + (partial * T::kRowGroups + row_group) * T::kPartialBytes) + thread;
  };
  Barrier& full = shared.partials_full[row_group];
  Barrier& read = shared.partials_read[row_group];
  if (use > 0) read.wait(use - 1);  // the tile before is done with memory and barrier
  if (rank != root) {
    float4* to = words_of(rank - root - 1 + (rank < root ? p.parts : 0));
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i)
      send_remote(to + i * 128, {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}, full, static_cast<std::uint32_t>(root));
    return false;
  }
  if (thread == 0) full.arrive_expecting(static_cast<std::uint32_t>((p.parts - 1) * T::kPartialBytes));
  full.wait(use / static_cast<unsigned>(p.parts));  // phases count a thread block's own turns
  for (int partial = 0; partial < p.parts - 1; ++partial) {
    const float4* from = words_of(partial);
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i) {
      const float4 more = from[i * 128];
      sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
    }
  }
  __syncwarp();
  if (!is_last && lane < p.parts) arrive_remote(read, static_cast<std::uint32_t>(lane));
  return true;
}

/// Of tiles of 256 tokens, beside whose slots there is no room for sums: both thread blocks of a cluster have one tile, and send each other
/// a half of the tokens through the slots when neither reads them any more. The first half of `sums` are those of tokens 128 * rank and on
/// then.
template <class T>
__device__ void exchange_halves(const WeightShared<T>& shared, int row_group, int rank, float (&sums)[T::kCount]) {
  constexpr int kHalf = T::kCount / 2, kBytes = T::kPartialBytes / 2;
  const int thread = thread_here() % 128;
  const auto other = static_cast<std::uint32_t>(rank ^ 1);
  Barrier& full = shared.partials_full[row_group];
  Barrier& is_free = shared.partials_read[0];
  if (thread == 0) full.arrive_expecting(kBytes);
  __syncwarp();
  if (thread % 32 == 0) arrive_remote(is_free, other);
  float4* words = reinterpret_cast<float4*>(shared.tokens + row_group * kBytes) + thread;
  const auto send = [&](const float* s, int i) { send_remote(words + i * 128, {s[0], s[1], s[2], s[3]}, full, other); };
  is_free.wait(0);
  if (rank == 0) {
#pragma unroll
    for (int i = 0; i < kHalf / 4; ++i) send(sums + kHalf + 4 * i, i);
  } else {
#pragma unroll
    for (int i = 0; i < kHalf / 4; ++i) send(sums + 4 * i, i);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sums[i] = sums[kHalf + i];
  }
  full.wait(0);
#pragma unroll
  for (int i = 0; i < kHalf / 4; ++i) {
    const float4 more = words[i * 128];
    sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
  }
}

/// The sums of a piece of a tile whose other pieces other workers have. They leave theirs in memory; the one that has the tile's first
/// chunks has them last in its share, when the others, which begin with theirs, are done or nearly so. It adds them up in order; true
/// there.
template <class T>
__device__ bool share_sums(const WeightParams& p, int worker, const WeightPiece& piece, int row_group, float (&sums)[T::kCount]) {
  const int thread = thread_here() % 128, barrier = 1 + row_group;
  const auto words_of = [&](int of) { return p.partials + (of * T::kRowGroups + row_group) * (T::kPartialBytes / 16) + thread; };
  if (piece.begin > 0) {
    float4* to = words_of(worker);
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i) __stcg(to + i * 128, {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
    __threadfence();
    named_sync(barrier, 128);
    if (thread == 0) store_release(p.partials_there + worker * T::kRowGroups + row_group, p.nonce);
    return false;
  }
  const int tile_end = (piece.tile + 1) * p.depth_chunks;
  for (int from = worker + 1; from < p.workers && WeightWork::share_begin(p, from) < tile_end; ++from) {
    if (WeightWork::share_begin(p, from) == piece.tile * p.depth_chunks) continue;
    unsigned long long* there = p.partials_there + from * T::kRowGroups + row_group;
    if (thread == 0) {
      while (load_acquire(there) != p.nonce) {
      }
      *there = 0;  // for the next time that a recorded launch runs
    }
    named_sync(barrier, 128);
    const float4* words = words_of(from);
#pragma unroll
    for (int i = 0; i < T::kCount / 4; ++i) {
      const float4 more = __ldcg(words + i * 128);
      sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
    }
  }
  return true;
}

/// Two values to 16 bits each; beyond fp16's range its largest.
__device__ inline std::uint32_t pack_pair(bool half, float low, float high) {
  std::uint32_t result;
  if (half)
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// 32 tokens x 64 columns of y as 16-bit values, in a tensor copy's swizzle.
__device__ inline void stage_box(bool half, const float* sums, std::byte* to) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float* s = sums + pair * 8;
    const int r = pair * 16 + lane / 16 * 8 + lane % 8;
    store_matrices_transposed(shared_address(to) + r * 128 + ((warp * 2 + lane / 8 % 2) ^ (r % 8)) * 16, pack_pair(half, s[0], s[1]),
                              pack_pair(half, s[2], s[3]), pack_pair(half, s[4], s[5]), pack_pair(half, s[6], s[7]));
  }
}

/// 32 tokens as fp32, and from there element by element through any epilogue.
__device__ inline void stage_and_finish(const WeightParams& p, const float* sums, int column, int token, std::byte* to, int barrier) {
  const int thread = thread_here() % 128, lane = thread % 32, warp = thread / 32;
  float* values = reinterpret_cast<float*>(to);  // [32][64], columns exchanged against bank conflicts
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = i / 4 * 8 + lane % 4 * 2 + i % 2, c = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    values[r * 64 + (c ^ (lane % 4 * 8))] = sums[i];
  }
  named_sync(barrier, 128);
#pragma unroll 1
  for (int i = thread; i < min(32, p.m - token) * 64; i += 128) {
    const int r = i / 64, c = i % 64;
    const float v = values[r * 64 + (c ^ (r / 2 % 4 * 8))];
    if (column + c < p.n) finish_and_store(p.epilogue, v, token + r, column + c, p.n, p.y, p.y_pitch);
  }
}

/// Finishes and stores the sums of a warpgroup: 64 columns of y from `column` on, kTokens rows from `token` on.
template <class T, int kTokens = T::kTokens>
__device__ void store_sums(const WeightParams& p, const CUtensorMap& y, float (&sums)[T::kCount], const float (&factors)[2], int column,
                           int token, std::byte* staging, int row_group) {
  constexpr int kPieces = std::min(T::kStorePieces, kTokens / 32);
  const int barrier = 1 + row_group;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sums[i] *= factors[i / 2 % 2];
  std::byte* mine = staging + row_group * T::kGroupStoreBytes;
  if (!p.box_stores) {
#pragma unroll
    for (int piece = 0; piece < kTokens / 32; ++piece)
      if (token + piece * 32 < p.m) {
        named_sync(barrier, 128);
        stage_and_finish(p, sums + piece * 16, column, token + piece * 32, mine, barrier);
      }
    return;
  }
  const bool half = p.epilogue.out == DType::kF16, stores = thread_here() % 128 < 32 && is_elected();
#pragma unroll
  for (int first = 0; first < kTokens / 32; first += kPieces) {
    if (stores) wait_stores_read<0>();
    named_sync(barrier, 128);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) stage_box(half, sums + (first + piece) * 16, mine + piece * 4096);
    fence_shared_for_copies();
    named_sync(barrier, 128);
    if (stores) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) copy_box_out(y, column, token + (first + piece) * 32, mine + piece * 4096);
      commit_stores();
    }
  }
}

}  // namespace narrow::cuda::sm90
