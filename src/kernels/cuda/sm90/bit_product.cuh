#pragma once
/// The Hopper main loop of products of bits, D = epilogue(A * B^T) of matrices of +-1.
///
/// Mapping:  persistent thread blocks. One producer thread copies blocks of 1024 bits along k of A and B by TMA into a ring of stages; two
///           consumer warpgroups, 64 rows each, multiply them by wgmma (and + popcount, 256 bits a step). In clusters of two the thread
///           blocks lie one above the other and each loads half of B for both.
/// Turns:    one warpgroup alone keeps the tensor cores busy, so they multiply in turn, `chunk` blocks each: while one finishes its sums
///           and stores them, the other multiplies. The ring is what the first may be ahead of the second.
/// Requires: compute capability 9.0; rows of A and B 16-byte aligned, zeros beyond k, terms (checked in ops/).
/// Bound:    arithmetic (32,768 products a cycle and multiprocessor) for k beyond some 4,000, else the bytes of D. Meaning:
///           reference/matmul.cc, bit for bit.

#include "kernels/cuda/sm90/bit_epilogue.cuh"
#include "kernels/cuda/sm90/wgmma_bits.cuh"

namespace narrow::cuda::sm90 {

/// The producer: one thread.
template <class T>
__device__ void produce_bits(const BitParams& p, const CUtensorMap& a, const CUtensorMap& b, const BitShared<T>& shared, int worker,
                             int rank) {
  Ring<T::kStages> at;
  Ring<T::kTerms> terms;
  wait_for_earlier_kernels();
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    const int2 place = place_of_bits<T>(p, tile, rank);
    shared.terms_empty[terms.slot].wait(terms.parity ^ 1u);
    Barrier& full_terms = shared.terms_full[terms.slot];
    full_terms.arrive_expecting(T::kTermBytes);
    // A cluster's second tile may lie below the last row: the terms of row 0 are as good as any there.
    copy_bulk(shared.row_terms(terms.slot), p.a_terms + (place.x < p.m ? place.x : 0), T::kTileM * sizeof(BitTerm), full_terms);
    copy_bulk(shared.column_terms(terms.slot), p.b_terms + place.y, T::kTileN * sizeof(BitTerm), full_terms);
    terms.advance();
#pragma unroll 1
    for (int block = 0; block < p.blocks; ++block) {
      shared.empty[at.slot].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.slot];
      full.arrive_expecting(T::kStageBytes);
      copy_box(shared.a(at.slot), a, block * 128, place.x, full);
      if constexpr (T::kCluster == 2) {
        constexpr int kHalf = T::kTileN / 2;
        copy_box_multicast(shared.b(at.slot) + rank * kHalf * 128, b, block * 128, place.y + rank * kHalf, full, 3);
      } else {
        copy_box(shared.b(at.slot), b, block * 128, place.y, full);
      }
      at.advance();
    }
  }
}

/// A consumer warpgroup.
template <class T>
__device__ void consume_bits(const BitParams& p, const CUtensorMap& d, const BitShared<T>& shared, int worker, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const std::uint32_t first_a = operand_word(shared_address(shared.a(0)) + group * 64 * 128),
                      first_b = operand_word(shared_address(shared.b(0)));
  Ring<T::kStages> at;
  Ring<T::kTerms> terms;
  unsigned turns = 0;
  int popcounts[T::kCount];
#pragma unroll
  for (int i = 0; i < T::kCount; ++i) popcounts[i] = 0;

  const auto release = [&](int slot) {
    if (lane >= T::kCluster) return;
    if constexpr (T::kCluster == 1)
      shared.empty[slot].arrive();
    else
      arrive_remote(shared.empty[slot], static_cast<std::uint32_t>(lane));
  };
  const auto issue = [&](int slot, bool add) {
    // The same in all lanes, and known to be: descriptors are then computed in uniform registers.
    const std::uint32_t offset = __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(slot * (T::kStageBytes / 16)), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_bits(popcounts, operand(first_a + offset + step * 2), operand(first_b + offset + step * 2), add || step > 0);
    wgmma_commit();
  };

  if (group == 1 && lane == 0) shared.turn[0].arrive();  // the first turn is the first warpgroup's
  wait_for_earlier_kernels();                            // from here on D is written
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    pin(popcounts);
#pragma unroll 1
    for (int block = 0; block < p.blocks;) {
      const int end = min(block + p.chunk, p.blocks);
      shared.turn[group].wait(turns++);
      shared.full[at.slot].wait(at.parity);
      issue(at.slot, block > 0);
#pragma unroll 1
      for (++block; block < end; ++block) {
        Ring<T::kStages> next = at;
        next.advance();
        shared.full[next.slot].wait(next.parity);
        issue(next.slot, true);
        wgmma_wait<1>();
        release(at.slot);
        at = next;
      }
      if (lane == 0) shared.turn[1 - group].arrive();
      wgmma_wait<0>();
      release(at.slot);
      at.advance();
    }
    pin(popcounts);
    const int2 place = place_of_bits<T>(p, tile, rank);
    shared.terms_full[terms.slot].wait(terms.parity);
    if (!p.boxed)
      store_bits_any<T>(p, shared, terms.slot, popcounts, place.x, place.y);
    else if (p.epilogue.out == DType::kF16)
      store_boxes<T, DType::kF16>(p, d, shared, terms.slot, popcounts, place.x, place.y);
    else if (p.epilogue.out == DType::kBf16)
      store_boxes<T, DType::kBf16>(p, d, shared, terms.slot, popcounts, place.x, place.y);
    else if (p.epilogue.out == DType::kF32)
      store_boxes<T, DType::kF32>(p, d, shared, terms.slot, popcounts, place.x, place.y);
    else
      store_boxes<T, DType::kI32>(p, d, shared, terms.slot, popcounts, place.x, place.y);
    __syncwarp();  // the terms are read
    if (lane == 0) shared.terms_empty[terms.slot].arrive();
    terms.advance();
  }
  if (lane == 0) wait_stores_read<0>();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    bit_product(const __grid_constant__ BitParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const BitShared<T> shared(memory);
  const int rank = T::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    if (p.boxed) prefetch_map(d);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    for (int slot = 0; slot < T::kTerms; ++slot) {
      shared.terms_full[slot].init(1);
      shared.terms_empty[slot].init(T::kConsumers * 4);
    }
    for (int group = 0; group < T::kConsumers; ++group) shared.turn[group].init(4);
    fence_barriers();
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<T::kProducerRegisters>();
    if (threadIdx.x == T::kConsumerThreads) produce_bits<T>(p, a, b, shared, worker, rank);
  } else {
    take_registers<T::kConsumerRegisters>();
    consume_bits<T>(p, d, shared, worker, rank);
  }
  if constexpr (T::kCluster > 1) cluster_sync();  // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
