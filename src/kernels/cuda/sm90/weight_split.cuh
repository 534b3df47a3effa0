#pragma once
/// Products of few tokens whose tiles are split along k (weight_stream.cuh deals rows and shares none). Tiles of 64 and more rows ask for
/// x less often than such of 32 and copy whole chunks, and where they are fewer than multiprocessors, parts of them are not.
///
/// Mapping:  a cluster of `parts` thread blocks has one tile of 64, 128 or 256 rows; each goes through a part of its units along k, as
///           weight_stream.cuh does. Of the sums, in pieces of 16 rows x 8 tokens, every thread block collects its own from the others,
///           through shared memory and in one order, and stores them.
/// Products: by mma of warps; of 32 tokens by wgmma, with two warpgroups of 64 rows each.
/// Requires: compute capability 9.0; rows of x 16-byte aligned.

#include "kernels/cuda/sm90/weight_consume.cuh"
#include "kernels/cuda/sm90/weight_stream.cuh"

namespace narrow::cuda::sm90 {

/// cluster_sync in two: what is done between both is not ordered.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

constexpr int kSplitWarps = 8, kSplitThreads = (kSplitWarps + 1) * 32;

/// Pieces of a tile that a thread block of a cluster owns at most.
NARROW_HOST_DEVICE constexpr int split_pieces(int wide, int tokens, int parts) { return (wide * tokens / 4 + parts - 1) / parts; }
/// Bytes of shared memory. depth_warps: warps that share rows; half of their sums at a time are added in it.
NARROW_HOST_DEVICE constexpr int split_shared_bytes(int slots, int wide, int box_rows, int tokens, int chunk_bytes, int parts,
                                                    int depth_warps) {
  return 2048 + slots * (stream_token_bytes(wide, box_rows) + 4 * chunk_bytes) + depth_warps / 2 * wide * tokens * 128 +
         (parts - 1) * split_pieces(wide, tokens, parts) * 512;
}

/// What a thread block does: rows of chunks, tokens, and units of p.depth chunks along k.
struct SplitPlace {
  int rank, token, first_run, runs, units, begin, chunks;

  __device__ SplitPlace(const WeightParams& p, int tokens) {
    const int cluster = static_cast<int>(blockIdx.x) / p.parts, tile = cluster / p.token_tiles, depth_shift = 3 - p.wide_shift;
    rank = static_cast<int>(blockIdx.x) - cluster * p.parts;
    token = (cluster - tile * p.token_tiles) * tokens;
    first_run = tile * (p.wide / 2);
    runs = min(p.wide / 2, p.row_chunks - first_run);
    const int all = (p.depth_chunks + p.depth - 1) >> depth_shift, first = all * rank / p.parts;
    units = all * (rank + 1) / p.parts - first;
    begin = first << depth_shift;
    chunks = min(p.depth_chunks - begin, units << depth_shift);
  }
};

/// The warp that copies. kQuads: pieces of 16 rows.
template <int kQuads>
__device__ void copy_split(const WeightParams& p, const CUtensorMap& x, const StreamShared& shared, Barrier& sums_full,
                           const SplitPlace& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32, depth_shift = 3 - p.wide_shift;
  if (lane == 0) {
#pragma unroll 1
    for (int slot = 0; slot < p.weight_slots; ++slot) {
      shared.full[slot].init(1);
      shared.empty[slot].init(kSplitWarps);
    }
    sums_full.init(1);
    fence_barriers();
    const int pieces = (4 * place.runs * kQuads - place.rank + p.parts - 1) / p.parts;  // of this thread block
    if (p.parts > 1) sums_full.arrive_expecting(static_cast<std::uint32_t>((p.parts - 1) * pieces * 512));
    prefetch_map(x);
  }
  __syncwarp();
  if (p.parts > 1) cluster_arrive();
  const std::uint8_t* from = p.chunks + (std::int64_t{place.first_run + lane} * p.depth_chunks + place.begin) * p.chunk_bytes;
  const auto copy_weights = [&](int slot, int unit) {  // a lane copies a row of chunks
    const int bytes = min(p.depth, place.chunks - (unit << depth_shift)) * p.chunk_bytes;
    Barrier& full = shared.full[slot];
    if (lane == 0) full.arrive_expecting(static_cast<std::uint32_t>(place.runs * bytes + 2 * p.depth * p.box_rows * 128));
    __syncwarp();
    if (lane < place.runs) {
      std::byte* to = shared.weights + slot * p.slot_bytes + lane * p.depth * p.chunk_bytes;
      if (p.token_tiles == 1)
        copy_bulk_once(to, from, static_cast<std::uint32_t>(bytes), full);
      else
        copy_bulk(to, from, static_cast<std::uint32_t>(bytes), full);
    }
    from += p.depth * p.chunk_bytes;
  };
  const auto copy_tokens = [&](int slot, int unit) {
    const int plane = 2 * (place.begin + (unit << depth_shift));
    if (lane == 0) copy_box_3d(shared.tokens + slot * p.token_bytes, x, 0, place.token, plane, shared.full[slot]);
  };
  const int first = min(p.weight_slots, place.units);
#pragma unroll 1
  for (int slot = 0; slot < first; ++slot) copy_weights(slot, slot);
  __syncthreads();
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int slot = 0; slot < first; ++slot) copy_tokens(slot, slot);
  let_next_kernel_start();
  RingPlace at;
#pragma unroll 1
  for (int unit = first; unit < place.units; ++unit, at.advance(p.weight_slots)) {
    shared.empty[at.slot].wait(at.parity);
    copy_weights(at.slot, unit);
    copy_tokens(at.slot, unit);
  }
}

/// Sends a warp's pieces, from number `first` of the tile on, to the thread blocks that own them, and adds to its own what the others send,
/// which `received` has room for, [other part][piece / parts][lane]. The owner of a piece is its number modulo parts. Bits of those owned.
template <int kQuads>
__device__ unsigned exchange(const WeightParams& p, float4 (&values)[kQuads], int first, int rank, float4* received, int most,
                             Barrier& sums_full) {
  if (p.parts == 1) return ~0u;
  const int lane = thread_here() % 32, first_place = first / p.parts, first_owner = first - first_place * p.parts;
  unsigned owned = 0;
  int place = first_place, owner = first_owner;
  cluster_wait();  // for barriers of the others
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int sender = rank - owner - 1 + (rank < owner ? p.parts : 0);
    if (owner == rank)
      owned |= 1u << i;
    else
      send_remote(received + (sender * most + place) * 32 + lane, values[i], sums_full, static_cast<std::uint32_t>(owner));
    if (++owner == p.parts) owner = 0, ++place;
  }
  if (owned == 0) return 0;
  sums_full.wait(0);
  place = first_place, owner = first_owner;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (owner == rank)
#pragma unroll 1
      for (int sender = 0; sender < p.parts - 1; ++sender) add(values[i], received[(sender * most + place) * 32 + lane]);
    if (++owner == p.parts) owner = 0, ++place;
  }
  return owned;
}

/// Tokens {0, 1} of columns {0, 8}, from (row, column) of y on.
__device__ inline void store_quad(const WeightParams& p, float4 quad, int row, int column) {
  if (!p.plain_stores) return finish_quad(p, quad, row, column);
  const bool half = p.epilogue.out == DType::kF16;
  auto* to = static_cast<std::uint16_t*>(p.y) + row * p.y_pitch + column;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const std::uint32_t pair = second == 0 ? pack_pair(half, quad.x, quad.y) : pack_pair(half, quad.z, quad.w);
    if (column + second * 8 >= p.n) continue;
    if (row < p.m) to[second * 8] = static_cast<std::uint16_t>(pair);
    if (row + 1 < p.m) to[p.y_pitch + second * 8] = static_cast<std::uint16_t>(pair >> 16);
  }
}

template <class T>
__global__ void __launch_bounds__(kSplitThreads, 2)
    weight_split(const __grid_constant__ WeightParams p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap) {
  extern __shared__ std::byte memory[];
  const StreamShared shared(memory, p);
  Barrier& sums_full = shared.empty[kMostStreamSlots];
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const SplitPlace place(p, T::kTokens);
  if (warp == kSplitWarps) return copy_split<T::kQuads / 2>(p, x, shared, sums_full, place);

  if (threadIdx.x < 8) reinterpret_cast<uint4*>(shared.zeros)[threadIdx.x] = uint4{0, 0, 0, 0};
  if (p.parts > 1) cluster_arrive();
  StreamConsumer<T> consumer(p, shared, warp);
  const int lane = consumer.lane, row_warp = consumer.row_warp, depth_warp = consumer.depth_warp;
  const bool busy = row_warp < 2 * place.runs;
  const int column = place.first_run * kChunkRows + row_warp * kGroupRows;
  const int mine = (place.chunks - depth_warp + p.depth - 1) >> (3 - p.wide_shift);
  const float* factor = p.factors + (busy ? column : 0) + lane / 4;
  float factors[4], sums[2][T::kCount];
#pragma unroll
  for (int i = 0; i < 4; ++i) load_here(factors[i], factor + 8 * i);
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[0][i] = sums[1][i] = 0.0f;
  __syncthreads();
  wait_for_earlier_kernels();
  consumer.multiply(sums, place.units, busy ? mine : 0);

  float4 values[T::kQuads];
#pragma unroll
  for (int i = 0; i < T::kQuads; ++i) {
    const float* four = sums[i / (T::kQuads / 2)] + i % (T::kQuads / 2) * 4;
    values[i] = {four[0], four[1], four[2], four[3]};
  }
  // Halves of the warps of a row send to the others, which never write over what another one has yet to read: [depth / 2][row warp][quad].
  const int step = p.wide * T::kQuads * 32;
  float4* partials = shared.partials + row_warp * T::kQuads * 32 + lane;
#pragma unroll 1
  for (int half = p.depth / 2; half > 0; half /= 2) {
    const bool sends = depth_warp >= half;
    float4* at = partials + (half == 1 ? p.depth / 2 - 1 : depth_warp % half) * step;
    if (sends)
#pragma unroll
      for (int i = 0; i < T::kQuads; ++i) at[i * 32] = values[i];
    named_sync(1, 2 * half * p.wide * 32);
    if (sends) return;
#pragma unroll
    for (int i = 0; i < T::kQuads; ++i) add(values[i], at[i * 32]);
  }
  if (!busy) return;
  float4* received = shared.partials + p.depth / 2 * step;
  const unsigned owned =
      exchange<T::kQuads>(p, values, row_warp * T::kQuads, place.rank, received, split_pieces(p.wide, T::kTokens, p.parts), sums_full);
  if (owned != 0) store_stream<T>(p, values, factors, column, place.token, owned);
}

/// The same by wgmma: two warpgroups, each with 64 rows of a tile of 128.
template <class T>
__global__ void __launch_bounds__(kSplitThreads, 2)
    weight_split_wide(const __grid_constant__ WeightParams p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap) {
  extern __shared__ std::byte memory[];
  const StreamShared shared(memory, p);
  Barrier& sums_full = shared.empty[kMostStreamSlots];
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const SplitPlace place(p, T::kTokens);
  constexpr int kQuads = T::kTokens / 8;
  if (warp == kSplitWarps) return copy_split<kQuads>(p, x, shared, sums_full, place);

  if (p.parts > 1) cluster_arrive();
  WeightConsumer<T, StreamShared> consumer(p, shared);
  const int lane = consumer.lane;
  const bool busy = consumer.row_group < place.runs;
  const int column = place.first_run * kChunkRows + warp * 16;
  const float* factor = p.factors + (busy ? column : 0) + lane / 4;
  float factors[2], sums[T::kCount];
  load_here(factors[0], factor), load_here(factors[1], factor + 8);
  if (p.mode == ScaleMode::kFold) {
    const float* fold = factor + p.row_chunks * kChunkRows;
    const float folds[2] = {__ldg(fold), __ldg(fold + 8)};
    consumer.set_folds(folds);
    factors[0] /= folds[0], factors[1] /= folds[1];
  }
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) sums[i] = 0.0f;
  __syncthreads();
  wait_for_earlier_kernels();
  if (p.mode == ScaleMode::kChunk)
    consumer.template multiply_units<true>(sums, place.units, place.chunks);
  else
    consumer.template multiply_units<false>(sums, place.units, place.chunks);
  if (!busy) return;
  float4 values[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) values[i] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  const unsigned owned =
      exchange<kQuads>(p, values, warp * kQuads, place.rank, shared.partials, split_pieces(p.wide, T::kTokens, p.parts), sums_full);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if ((owned >> i & 1u) == 0) continue;
    const float4 quad = {values[i].x * factors[0], values[i].y * factors[0], values[i].z * factors[1], values[i].w * factors[1]};
    store_quad(p, quad, place.token + i * 8 + lane % 4 * 2, column + lane / 4);
  }
}

}  // namespace narrow::cuda::sm90
