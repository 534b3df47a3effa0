#pragma once
/// The Hopper main loop of products of many tokens (64 and more a tile) and prepared weights, y^T = W * x^T.
///
/// Mapping:  persistent thread blocks. One warp copies chunks of packed weights, one copies boxes of x, both into rings of shared memory.
///           Two or three consumer warpgroups decode 64 rows of the weight each into the register operand of wgmma and multiply them with
///           the tokens in shared memory. Where tiles do not divide evenly, thread blocks share them along k: those of a cluster send
///           their sums to one of them, or each other a half; or all have an even share of all chunks and leave sums in memory. They are
///           added in one order.
/// Scales:   ScaleMode and weight_consume.cuh say where they enter.
/// Requires: compute capability 9.0; rows of x 16-byte aligned (ops/cuda_weights.cc sees to it).
/// Bound:    the tensor cores. Meaning: reference/matmul.cc within the contract's bound.

#include "kernels/cuda/sm90/weight_consume.cuh"
#include "kernels/cuda/sm90/weight_epilogue.cuh"

namespace narrow::cuda::sm90 {

/// One thread: a slot of weights has a chunk for each warpgroup. It does not wait for earlier kernels: only prepare_weight writes weights,
/// and lets no kernel start early.
template <class T>
__device__ void produce_weights(const WeightParams& p, const WeightShared<T>& shared, int worker, int rank) {
  const auto bytes = static_cast<std::uint32_t>(p.chunk_bytes);
  WeightWork work(p, worker, rank);
  WeightPiece piece;
  RingPlace at;
  while (work.next(piece)) {
    const WeightPlace place = place_of<T>(p, piece.tile);
    const std::uint8_t* from[T::kRowGroups];
#pragma unroll
    for (int group = 0; group < T::kRowGroups; ++group) {
      const std::int64_t row = min(place.row_chunk + group, p.row_chunks - 1);
      from[group] = p.chunks + (row * p.depth_chunks + piece.begin) * p.chunk_bytes;
    }
    for (int left = piece.count; left > 0; --left, at.advance(p.weight_slots)) {
      shared.weights_empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.weights_full[at.slot];
      full.arrive_expecting(T::kRowGroups * bytes);
#pragma unroll
      for (int group = 0; group < T::kRowGroups; ++group) {
        std::byte* to = shared.weights + (at.slot * T::kRowGroups + group) * p.chunk_bytes;
        if (p.token_tiles == 1)
          copy_bulk_once(to, from[group], bytes, full);
        else
          copy_bulk(to, from[group], bytes, full);
        from[group] += bytes;
      }
    }
  }
}

/// One thread: a slot of tokens has the columns of a slot of weights (but for 128x128 half of them), 64 at a time.
template <class T>
__device__ void produce_tokens(const WeightParams& p, const CUtensorMap& x, const WeightShared<T>& shared, int worker, int rank) {
  WeightWork work(p, worker, rank);
  WeightPiece piece;
  RingPlace at;
  wait_for_earlier_kernels();
  while (work.next(piece)) {
    const WeightPlace place = place_of<T>(p, piece.tile);
    const int end = 2 * (piece.begin + piece.count);
    for (int plane = 2 * piece.begin; plane < end; plane += T::kTokenDepth / 64, at.advance(p.token_slots)) {
      shared.tokens_empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.tokens_full[at.slot];
      full.arrive_expecting(T::kTokenBytes);
      copy_box_3d(shared.tokens + at.slot * T::kTokenBytes, x, 0, place.token, plane, full);
    }
  }
}

template <class T>
__device__ void consume(const WeightParams& p, const CUtensorMap& y, const WeightShared<T>& shared, int worker, int rank) {
  WeightConsumer<T> consumer(p, shared);
  WeightWork work(p, worker, rank);
  WeightPiece piece;
  wait_for_earlier_kernels();
  unsigned use = 0;
  for (; work.next(piece); ++use) {
    const WeightPlace place = place_of<T>(p, piece.tile);
    const int column = (place.row_chunk + consumer.row_group) * kChunkRows;
    const float* factor = p.factors + min(column, (p.row_chunks - 1) * kChunkRows) + consumer.warp * 16 + consumer.lane / 4;
    float factors[2] = {__ldg(factor), __ldg(factor + 8)};
    if (p.mode == ScaleMode::kFold) {
      const float* fold = factor + p.row_chunks * kChunkRows;
      const float folds[2] = {__ldg(fold), __ldg(fold + 8)};
      consumer.set_folds(folds);
      factors[0] /= folds[0], factors[1] /= folds[1];
    }
    float sums[T::kCount];
    consumer.multiply(sums, piece.count);
    if (T::kDepthGroups > 1 && !add_depths<T>(shared, consumer.row_group, consumer.depth_group, sums)) continue;
    if constexpr (T::kExchanges)
      if (p.parts > 1) {
        exchange_halves<T>(shared, consumer.row_group, rank, sums);
        store_sums<T, T::kTokens / 2>(p, y, sums, factors, column, place.token + rank * (T::kTokens / 2), shared.stores,
                                      consumer.row_group);
        continue;
      }
    if (p.partials != nullptr ? share_sums<T>(p, worker, piece, consumer.row_group, sums)
                              : add_partials<T>(p, shared, consumer.row_group, rank, use, work.is_done(), sums))
      store_sums<T>(p, y, sums, factors, column, place.token, shared.stores, consumer.row_group);
  }
  if (threadIdx.x % 128 < 32) wait_stores_read<0>();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    weight_product(const __grid_constant__ WeightParams p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
  extern __shared__ std::byte memory[];
  const WeightShared<T> shared(memory, p);
  const int rank = p.parts > 1 ? static_cast<int>(cluster_rank()) : 0, block = static_cast<int>(blockIdx.x) / p.parts;
  const int worker = p.partials != nullptr ? p.workers - 1 - block : block;
  if (threadIdx.x == 0) {
    prefetch_map(x);
    if (p.box_stores) prefetch_map(y);
    for (int slot = 0; slot < p.weight_slots; ++slot) {
      shared.weights_full[slot].init(1);
      shared.weights_empty[slot].init(T::kRowGroups * 4);
    }
    for (int slot = 0; slot < p.token_slots; ++slot) {
      shared.tokens_full[slot].init(1);
      shared.tokens_empty[slot].init(T::kRowGroups * 4);
    }
    for (int group = 0; group < T::kRowGroups; ++group) {
      shared.partials_full[group].init(1);
      shared.partials_read[group].init(T::kExchanges ? T::kConsumerThreads / 32 : 4);
      shared.turn[group].init(4);
    }
    fence_barriers();
  }
  __syncthreads();
  if (p.parts > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<T::kProducerRegisters>();
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x - T::kConsumerThreads) / 32, 0);
    if (warp == 0 && is_elected()) produce_weights<T>(p, shared, worker, rank);
    if (warp == 1 && is_elected()) produce_tokens<T>(p, x, shared, worker, rank);
  } else {
    take_registers<T::kConsumerRegisters>();
    consume<T>(p, y, shared, worker, rank);
  }
}

}  // namespace narrow::cuda::sm90
