#pragma once
/// A decode step of one sequence as one kernel.
///
/// Mapping:  one thread block per multiprocessor, all there at once. A step is a list of phases, each of which begins when its input is
///           there: per layer q, k, v; attention; o; gate, up; down; then the head. Two threads stream the weights of all phases through
///           shared memory (step_ring.cuh); 16 warps make each phase's input, multiply, and hand their sums to the next phase.
/// Requires: compute capability 9.0, a cooperative launch of at most one thread block per multiprocessor.
/// Bound:    the bytes of the weights.

#include "kernels/cuda/sm90/step_attend.cuh"

namespace narrow::cuda::sm90 {

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

/// Adds up the groups' sums, and hands them to the next phase. `finish`: of the thread's first result.
__device__ inline void store_results(const StepShared& shared, const StepShape& shape, const StepRun& run, const StepProduct& product,
                                     StepTag tag, StepFinish finish) {
  for (int i = thread_index(); i < run.rows * kChunkRows; i += kStepConsumers) {
    if (i >= kStepConsumers) finish = StepFinish(product, shape, run, i);
    const float* from = shared.partials - i / kChunkRows * StepShared::kRowPartials + i % kChunkRows;
    float sum = from[0];
#pragma unroll
    for (int group = 1; group < kStepGroups; ++group) sum += from[group * kChunkRows];
    const int vector = i < kChunkRows ? run.part : 0;
    std::uint32_t* to = shape.results + static_cast<std::int64_t>(vector) * shape.pitch + run.row * kChunkRows + i;
    store_relaxed(to, tag.word(sum * finish.factor + finish.bias));
  }
}

/// kPlain: has_plain_scales; others are kernels of their own, since registers would be spilled in the loops of all kinds of products in
/// one.
template <class D, bool kBf16, bool kPlain>
__global__ void __launch_bounds__(kStepThreads, 1) decode_step(const __grid_constant__ StepParams p) {
  extern __shared__ std::byte step_memory[];
  const StepShared shared(step_memory, p);
  const int thread = static_cast<int>(threadIdx.x), hidden = p.shapes[kStepQkv].k;
  if (thread == 0) {
    for (int slot = 0; slot < p.slots; ++slot) shared.fixed.full[slot].init(1), shared.fixed.empty[slot].init(kStepGroupWarps);
    for (int slot = 0; slot < p.head_slots; ++slot)
      shared.fixed.head_full[slot].init(1), shared.fixed.head_empty[slot].init(kStepGroupWarps);
    shared.fixed.handover.init(kStepProducers);
    fence_barriers();
  }
  const StepWindow window{&shared.fixed.window};
  if (thread == 0) {
    window.open(0);
    shared.fixed.cache = *p.cache;
    shared.fixed.position = *p.position;
    shared.fixed.steps = *reinterpret_cast<volatile std::uint32_t*>(p.arrivals + 2);
  }
  if (thread < kStepKinds)
    shared.fixed.runs[thread] = StepRun::of(p.shapes[thread], static_cast<int>(blockIdx.x), thread == kStepHead ? 1 : p.unit);
  for (int i = thread; i < p.layer_count * static_cast<int>(sizeof(StepLayer) / 8); i += kStepThreads)
    reinterpret_cast<std::uint64_t*>(shared.layers)[i] = reinterpret_cast<const std::uint64_t*>(p.layers)[i];
  for (int kind = 0; kind < kStepKinds; ++kind)
    for (int i = thread; i < p.shapes[kind].row_chunks; i += kStepThreads)
      shared.parts[p.shapes[kind].parts_at + i] = static_cast<std::uint8_t>(p.shapes[kind].parts_of(i));
  for (int i = thread; i < static_cast<int>(sizeof(StepParams) / 4); i += kStepThreads)
    reinterpret_cast<std::uint32_t*>(&shared.fixed.params)[i] = reinterpret_cast<const std::uint32_t*>(&p)[i];
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
  StepBarrier barrier(p.arrivals);
  StepCursor at;
  const StepOperand operand = operand_of(p.encoding);
#pragma unroll 1
  for (int phase = 0; phase <= kStepHead * p.layer_count; ++phase) {
    const int layer = phase / kStepHead, kind = layer == p.layer_count ? kStepHead : phase % kStepHead;
    const StepLayer& w = shared.layers[min(layer, p.layer_count - 1)];
    const StepShape& shape = p.shapes[kind];
    const StepRun& run = shared.fixed.runs[kind];
    const StepProduct& product = kind == kStepHead ? p.head : w.products[kind];
    const StepFinish finish(product, shape, run, thread_index());
    const StepTag earlier = StepTag::of(shared.fixed.steps, p.layer_count, kind == kStepQkv || kind == kStepHead ? layer - 1 : layer);
    if (kind == kStepDown) barrier.wait(p.arrivals);
    consumers_sync();  // the memory of the sums, and of attention, is free
    if (kind == kStepO) {
      make_input<kBf16, kDigits, 1>(
          shared, p.sum_columns, run, shape.k, [](int column) { return column; }, [](int) { return true; },
          [&](int column) { return p.head_dim == 128 ? load_mixed<128>(p, earlier, column) : load_mixed<0>(p, earlier, column); });
    } else if (kind == kStepDown) {
      const auto gate = [&]<int kParts, int kAtOnce>(std::integer_sequence<int, kParts, kAtOnce>) {
        const StepResults from = results_of(p, shared, kStepGateUp, earlier);
        using Words = StepResults::Words<kParts>;
        struct Pair {
          Words gate, up;
        };
        make_input<kBf16, kDigits, kAtOnce>(
            shared, p.sum_columns, run, shape.k,
            [&](int column) {
              return Pair{from.fetch<kParts>(column), from.fetch<kParts>(shape.k + column)};
            },
            [&](const Pair& pair) { return from.are_there(pair.gate) && from.are_there(pair.up); },
            [](const Pair& pair) {
              const float4 g = StepResults::sum(pair.gate), u = StepResults::sum(pair.up);
              return float4{silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z), silu_times(g.w, u.w)};
            });
      };
      if (p.vectors <= 2)
        gate(std::integer_sequence<int, 2, 3>{});
      else
        gate(std::integer_sequence<int, kStepMostParts, 1>{});
    } else {
      const StepResults added = results_of(p, shared, kind == kStepGateUp ? kStepO : kStepDown, earlier);
      const float* weight = kind == kStepHead ? p.final_norm : (kind == kStepQkv ? w.attention_norm : w.mlp_norm);
      const auto norm = [&]<int kQuads, int kParts>(std::integer_sequence<int, kQuads, kParts>) {
        if (kDigits && kind != kStepHead)
          norm_input<kBf16, true, kQuads, kParts>(shared, p.sum_columns, run, hidden, p.epsilon, added, phase > 0, weight);
        else
          norm_input<kBf16, false, kQuads, kParts>(shared, p.sum_columns, run, hidden, p.epsilon, added, phase > 0, weight);
      };
      if (p.vectors <= 2 && hidden <= kStepMostHidden / 2)
        norm(std::integer_sequence<int, 2, 2>{});
      else
        norm(std::integer_sequence<int, 4, kStepMostParts>{});
    }
    consumers_sync();
    if (thread == 0) window.open(phase);
    if (kind == kStepHead) at.restart();
    const StepSlots layers{p.unit, p.encoding.chunk_bytes, p.slots, shared.fixed.full, shared.fixed.empty},
        ring = kind == kStepHead ? StepSlots{1, StepShared::kHeadBytes, p.head_slots, shared.fixed.head_full, shared.fixed.head_empty}
                                 : layers;
    // In line: in functions of their own products take twice as long.
    const auto multiply = [&]<class One, StepScales kScales, bool kZeros>() __attribute__((always_inline)) {
      multiply_run<One, kBf16, kScales, kZeros>(shared, ring, at, run, shape.depth_chunks, operand);
    };
    const auto multiply_scaled = [&]<bool kZeros>() __attribute__((always_inline)) {
      if constexpr (kPlain || kZeros) {
        if (p.scales == StepScales::kRow)
          multiply.template operator()<D, StepScales::kRow, kZeros>();
        else if (p.scales == StepScales::kChunk)
          multiply.template operator()<D, StepScales::kChunk, kZeros>();
      }
      if constexpr (!kPlain) {
        if (p.scales == StepScales::kBlocks) multiply.template operator()<D, StepScales::kBlocks, kZeros>();
        if constexpr (has_sixteen(D::kBits))
          if (p.scales == StepScales::kSixteen) multiply.template operator()<D, StepScales::kSixteen, kZeros>();
        if constexpr (!kZeros)
          if (p.scales == StepScales::kPacked32) multiply.template operator()<D, StepScales::kPacked32, kZeros>();
        if constexpr (!kZeros && has_sixteen(D::kBits))
          if (p.scales == StepScales::kPacked16) multiply.template operator()<D, StepScales::kPacked16, kZeros>();
      }
    };
    if (D::kKind == WeightKind::kDense || kind == kStepHead)
      multiply.template operator()<Dense, StepScales::kRow, false>();
    else if constexpr (D::kKind == WeightKind::kInteger && !kPlain)
      operand.zero_offset != 0 ? multiply_scaled.template operator()<true>() : multiply_scaled.template operator()<false>();
    else if constexpr (D::kKind != WeightKind::kDense)
      multiply_scaled.template operator()<false>();
    if (thread == 0) window.close(phase);
    consumers_sync();
    const StepTag tag = kind == kStepHead ? StepTag::of(shared.fixed.steps, 1, 0) : StepTag::of(shared.fixed.steps, p.layer_count, layer);
    barrier.arrive(p.arrivals);
    store_results(shared, shape, run, product, tag, finish);
    if (kind == kStepQkv) {
      const bool is_one = p.heads == p.kv_heads;
      if (p.head_dim == 128 && p.cache_kind == CacheKind::kFp16)
        is_one ? attend_step<CacheKind::kFp16, 1, 128>(p, shared, layer) : attend_step<CacheKind::kFp16, 2, 128>(p, shared, layer);
      else if (p.head_dim == 128 && p.cache_kind == CacheKind::kBf16)
        is_one ? attend_apart<CacheKind::kBf16, 1, 128>(layer) : attend_apart<CacheKind::kBf16, 2, 128>(layer);
      else if (p.cache_kind == CacheKind::kFp16)
        is_one ? attend_apart<CacheKind::kFp16, 1, 0>(layer) : attend_apart<CacheKind::kFp16, 2, 0>(layer);
      else if (p.cache_kind == CacheKind::kBf16)
        is_one ? attend_apart<CacheKind::kBf16, 1, 0>(layer) : attend_apart<CacheKind::kBf16, 2, 0>(layer);
      else
        is_one ? attend_apart<CacheKind::kFp32, 1, 0>(layer) : attend_apart<CacheKind::kFp32, 2, 0>(layer);
      barrier.arrive(p.arrivals);
    }
  }
  const StepShape& head = p.shapes[kStepHead];
  const StepResults logits = results_of(p, shared, kStepHead, StepTag::of(shared.fixed.steps, 1, 0));
  for (int row = (static_cast<int>(blockIdx.x) * kStepConsumers + static_cast<int>(threadIdx.x)) * 4; row < head.n;
       row += static_cast<int>(gridDim.x) * kStepConsumers * 4) {
    const float4 v = logits.load<kStepMostParts>(row);
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (row + i < head.n) p.logits[row + i] = four[i];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) p.arrivals[1] = barrier.target, p.arrivals[2] = shared.fixed.steps + 1;  // the next step's start
}

}  // namespace narrow::cuda::sm90
