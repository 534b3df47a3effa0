#pragma once
/// A decode step of one sequence as one kernel.
///
/// Mapping:  one thread block per multiprocessor, all there at once. A step is a list of phases with grid barriers between them: per layer
///           q, k, v; attention; o; gate, up; down; then the head. Two threads stream the weights of all phases through shared memory and
///           stop at no barrier (step_ring.cuh); 16 warps make each phase's input, multiply, and hand their sums to the next phase.
/// Requires: compute capability 9.0, a cooperative launch of at most one thread block per multiprocessor.
/// Bound:    the bytes of the weights.

#include "kernels/cuda/sm90/step_attend.cuh"

namespace narrow::cuda::sm90 {

/// Meetings of all thread blocks: arrivals are counted and never reset.
struct StepBarrier {
  std::uint32_t* arrivals;
  std::uint32_t target;

  __device__ explicit StepBarrier(std::uint32_t* words) : arrivals(words), target(*reinterpret_cast<volatile std::uint32_t*>(words + 1)) {}
  /// After all consumers' stores.
  __device__ void arrive() {
    target += gridDim.x;
    consumers_sync();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
  }
  __device__ void wait() const {
    if (threadIdx.x == 0) {
      std::uint32_t seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
      while (static_cast<std::int32_t>(seen - target) < 0);
    }
    consumers_sync();
  }
  /// After the last wait, one thread: the next step begins from here.
  __device__ void finish() const { arrivals[1] = target; }
};

__device__ inline StepOperand operand_of(const StepEncoding& e) {
  return {e.scale_offset, e.zero_offset, e.step_shift, e.scale, static_cast<float>(e.integer_offset)};
}

/// A result's factor and bias, read before they are needed.
struct StepFinish {
  float factor = 1.0f, bias = 0.0f;
  __device__ StepFinish(const StepProduct& product, const StepShape& shape, const StepRun& run, int i) {
    if (i >= run.rows * kChunkRows) return;
    const int row = run.row * kChunkRows + i;
    factor = __ldg(product.factors + row);
    if (product.bias != nullptr && row < shape.n && (i >= kChunkRows || run.part == 0)) bias = __ldg(product.bias + row);
  }
};

/// Adds up the groups' sums, and adds them to the results that the next phase reads. `finish`: of the thread's first result.
__device__ inline void store_results(const StepShared& shared, const StepShape& shape, const StepRun& run, const StepProduct& product,
                                     StepFinish finish) {
  consumers_sync();
  for (int i = static_cast<int>(threadIdx.x); i < run.rows * kChunkRows; i += kStepConsumers) {
    if (i >= kStepConsumers) finish = StepFinish(product, shape, run, i);
    const float* from = shared.partials + i / kChunkRows * kStepGroups * kChunkRows + i % kChunkRows;
    float sum = from[0];
#pragma unroll
    for (int group = 1; group < kStepGroups; ++group) sum += from[group * kChunkRows];
    const int vector = i < kChunkRows ? run.part / 2 : 0;
    float* to = shape.results + static_cast<std::int64_t>(vector) * shape.pitch + run.row * kChunkRows + i;
    atomicAdd(to, sum * finish.factor + finish.bias);
  }
}

/// Sets a product's results to zero again. Its readers are done, and a barrier comes before its next writers, where the phase of a kind
/// clears those of the kind two products away, and the first layer's o those of the head.
__device__ inline void clear_results(const StepParams& p, int kind) {
  const StepShape& shape = p.shapes[kind];
  for (int i = static_cast<int>(blockIdx.x * kStepConsumers + threadIdx.x); i < p.vectors * shape.pitch; i += gridDim.x * kStepConsumers)
    __stcg(shape.results + i, 0.0f);
}

/// kPlain: has_plain_scales; others are kernels of their own, since registers would be spilled in the loops of all kinds of products in
/// one.
template <class D, bool kBf16, bool kPlain>
__global__ void __launch_bounds__(kStepThreads, 1) decode_step(const __grid_constant__ StepParams p) {
  extern __shared__ std::byte memory[];
  const StepShared shared(memory, p);
  const int thread = static_cast<int>(threadIdx.x), hidden = p.shapes[kStepQkv].k;
  if (thread == 0) {
    for (int slot = 0; slot < p.slots; ++slot) shared.full[slot].init(1), shared.empty[slot].init(kStepGroupWarps);
    for (int slot = 0; slot < p.head_slots; ++slot) shared.head_full[slot].init(1), shared.head_empty[slot].init(kStepGroupWarps);
    shared.handover->init(kStepProducers);
    fence_barriers();
  }
  const StepWindow window{shared.window};
  if (thread == 0) window.open(0);
  if (thread < kStepKinds)
    shared.runs[thread] = StepRun::of(p.shapes[thread], static_cast<int>(blockIdx.x), thread == kStepHead ? 1 : p.unit);
  for (int i = thread; i < p.layer_count * static_cast<int>(sizeof(StepLayer) / 8); i += kStepThreads)
    reinterpret_cast<std::uint64_t*>(shared.layers)[i] = reinterpret_cast<const std::uint64_t*>(p.layers)[i];
  const int half = p.head_dim / 2;
  for (int i = thread; i < half; i += kStepThreads) {
    shared.turns[i] = p.cosine[std::int64_t{*p.position} * half + i];
    shared.turns[half + i] = p.sine[std::int64_t{*p.position} * half + i];
  }
  for (int i = thread; i < hidden; i += kStepThreads)
    shared.stream[i] = load_value(p.embedding, p.embedding_type, std::int64_t{*p.token} * hidden + i);
  __syncthreads();
  if (threadIdx.x >= kStepConsumers) {
    give_registers<32>();
    const int worker = (thread - kStepConsumers) / 32;
    if (thread % 32 == 0 && worker < kStepProducers) produce_step(p, shared, worker);
    return;
  }
  take_registers<112>();
  constexpr bool kDigits = D::kKind == WeightKind::kInteger;
  using Dense = Decoder<WeightKind::kDense, 16>;
  const StepScales scales = scales_of(p.encoding);
  const int sum_columns = steps_of(scales) * 16;
  StepBarrier barrier(p.arrivals);
  StepCursor at;
  const StepOperand operand = operand_of(p.encoding);
  const CacheView cache = *p.cache;
  const int position = *p.position;
#pragma unroll 1
  for (int phase = 0; phase <= kStepHead * p.layer_count; ++phase) {
    const int layer = phase / kStepHead, kind = layer == p.layer_count ? kStepHead : phase % kStepHead;
    const StepLayer& w = shared.layers[min(layer, p.layer_count - 1)];
    const StepShape& shape = p.shapes[kind];
    const StepRun& run = shared.runs[kind];
    const StepProduct& product = kind == kStepHead ? p.head : w.products[kind];
    const StepFinish finish(product, shape, run, thread);
    const auto wait = [&] {
      if (phase > 0) barrier.wait();
    };
    if (kind == kStepO) {
      wait();
      make_input<kBf16, kDigits, 1>(shared, sum_columns, run, shape.k,
                                    [&](int column) { return p.head_dim == 128 ? load_mixed<128>(p, column) : load_mixed<0>(p, column); });
    } else if (kind == kStepDown) {
      wait();
      const auto gate = [&]<int kVectors, int kAtOnce>(std::integer_sequence<int, kVectors, kAtOnce>) {
        const StepResults from = results_of(p, kStepGateUp);
        make_input<kBf16, kDigits, kAtOnce>(shared, sum_columns, run, shape.k, [&](int column) {
          const float4 g = from.load<kVectors>(column), u = from.load<kVectors>(shape.k + column);
          return float4{silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z), silu_times(g.w, u.w)};
        });
      };
      if (p.vectors == 1)
        gate(std::integer_sequence<int, 1, 3>{});
      else
        gate(std::integer_sequence<int, 2, 1>{});
    } else {
      const StepResults added = results_of(p, kind == kStepGateUp ? kStepO : kStepDown);
      const float* weight = kind == kStepHead ? p.final_norm : (kind == kStepQkv ? w.attention_norm : w.mlp_norm);
      const auto norm = [&]<int kQuads, int kVectors>(std::integer_sequence<int, kQuads, kVectors>) {
        if (kDigits && kind != kStepHead)
          norm_input<kBf16, true, kQuads, kVectors>(shared, sum_columns, run, hidden, p.epsilon, added, phase > 0, weight, wait);
        else
          norm_input<kBf16, false, kQuads, kVectors>(shared, sum_columns, run, hidden, p.epsilon, added, phase > 0, weight, wait);
      };
      if (p.vectors == 1 && hidden <= kStepMostHidden / 2)
        norm(std::integer_sequence<int, 2, 1>{});
      else
        norm(std::integer_sequence<int, 4, 2>{});
    }
    if (kind != kStepHead) clear_results(p, (kind + 2) % kStepHead);
    if (phase == kStepO) clear_results(p, kStepHead);
    consumers_sync();
    if (thread == 0) window.open(phase);
    if (kind == kStepHead) at.restart();
    const StepSlots layers{p.unit, p.encoding.chunk_bytes, p.slots, shared.full, shared.empty},
        ring = kind == kStepHead ? StepSlots{1, StepShared::kHeadBytes, p.head_slots, shared.head_full, shared.head_empty} : layers;
    const auto multiply = [&]<class One, StepScales kScales, bool kZeros>() {
      multiply_run<One, kBf16, kScales, kZeros>(shared, ring, at, run, shape.depth_chunks, operand);
    };
    const auto multiply_scaled = [&]<bool kZeros>() {
      if constexpr (kPlain || kZeros) {
        if (scales == StepScales::kRow)
          multiply.template operator()<D, StepScales::kRow, kZeros>();
        else if (scales == StepScales::kChunk)
          multiply.template operator()<D, StepScales::kChunk, kZeros>();
      }
      if constexpr (!kPlain) {
        if (scales == StepScales::kBlocks) multiply.template operator()<D, StepScales::kBlocks, kZeros>();
        if constexpr (has_sixteen(D::kBits))
          if (scales == StepScales::kSixteen) multiply.template operator()<D, StepScales::kSixteen, kZeros>();
        if constexpr (!kZeros)
          if (scales == StepScales::kPacked32) multiply.template operator()<D, StepScales::kPacked32, kZeros>();
        if constexpr (!kZeros && has_sixteen(D::kBits))
          if (scales == StepScales::kPacked16) multiply.template operator()<D, StepScales::kPacked16, kZeros>();
      }
    };
    if (D::kKind == WeightKind::kDense || kind == kStepHead)
      multiply.template operator()<Dense, StepScales::kRow, false>();
    else if constexpr (D::kKind == WeightKind::kInteger && !kPlain)
      operand.zero_offset != 0 ? multiply_scaled.template operator()<true>() : multiply_scaled.template operator()<false>();
    else if constexpr (D::kKind != WeightKind::kDense)
      multiply_scaled.template operator()<false>();
    if (thread == 0) window.close(phase);
    store_results(shared, shape, run, product, finish);
    barrier.arrive();
    if (kind == kStepQkv) {
      const auto wait = [&] { barrier.wait(); };
      const auto attend = [&]<CacheKind kCache>(std::integral_constant<CacheKind, kCache>) {
        if (p.cache_kind != kCache) return;
        const auto attend_heads = [&]<int kDim>() {
          if (p.heads == p.kv_heads)
            attend_step<kCache, 1, kDim>(p, shared, w, layer, cache, position, wait);
          else
            attend_step<kCache, 2, kDim>(p, shared, w, layer, cache, position, wait);
        };
        if (kCache != CacheKind::kFp32 && p.head_dim == 128)
          attend_heads.template operator()<128>();
        else
          attend_heads.template operator()<0>();
      };
      attend(std::integral_constant<CacheKind, CacheKind::kFp32>{});
      attend(std::integral_constant<CacheKind, CacheKind::kFp16>{});
      attend(std::integral_constant<CacheKind, CacheKind::kBf16>{});
      barrier.arrive();
    }
  }
  barrier.wait();
  const StepShape& head = p.shapes[kStepHead];
  const StepResults logits = results_of(p, kStepHead);
  for (int row = (static_cast<int>(blockIdx.x) * kStepConsumers + static_cast<int>(threadIdx.x)) * 4; row < head.n;
       row += static_cast<int>(gridDim.x) * kStepConsumers * 4) {
    const float4 v = p.vectors == 1 ? logits.load<1>(row) : logits.load<2>(row);
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (row + i < head.n) p.logits[row + i] = four[i];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) barrier.finish();
}

}  // namespace narrow::cuda::sm90
