#pragma once
/// The weights' way through a step: one thread copies all chunks of all products, in order, into a ring of shared memory; it waits for free
/// slots alone, never for results. A slot has up to `unit` chunks, and every fourth slot is the same group of four warps'. The head, whose
/// chunks are larger, takes the ring's memory over when the layers' slots are read.

#include "kernels/cuda/sm90/step_multiply.cuh"

namespace narrow::cuda::sm90 {

struct StepShared {
  std::byte* ring;
  float* stream;                                   ///< [hidden], the same in every thread block
  float* attention;                                ///< its memory, where that of the products is otherwise: x, x_sums, partials
  std::uint32_t* x;                                ///< [widest / 2], in the order of fragments (step_multiply.cuh)
  float* x_sums;                                   ///< of x, per 32 columns, or 16
  float* partials;                                 ///< [most_rows][groups][64]
  float* turns;                                    ///< cosines, then sines, of the step's position
  float* reduced;                                  ///< [32]
  StepRun* runs;                                   ///< of this thread block, one per kind of product
  StepLayer* layers;                               ///< all
  std::uint8_t* parts;                             ///< of every row of chunks of every kind
  Barrier *full, *empty, *head_full, *head_empty;  ///< one per slot

  static constexpr int kHeadBytes = kChunkRows * kChunkDepth * 2;  ///< of a slot

  NARROW_HOST_DEVICE static constexpr int padded(int bytes) { return (bytes + 15) / 16 * 16; }
  /// Columns that share a sum of x.
  NARROW_HOST_DEVICE static constexpr int sum_columns(int step_shift) { return step_shift == 4 ? 16 : 32; }
  NARROW_HOST_DEVICE static int sums_bytes(const StepParams& p) { return p.widest / sum_columns(p.encoding.step_shift) * 4; }
  NARROW_HOST_DEVICE static int work_bytes(const StepParams& p) {
    const int products = p.widest * 2 + sums_bytes(p) + p.most_rows * kStepGroups * 64 * 4;
    const int attention = padded(attend_bytes(p.heads / p.kv_heads, p.head_dim));
    return products > attention ? products : attention;
  }
  NARROW_HOST_DEVICE static int all_rows(const StepParams& p) {
    int rows = 0;
    for (const StepShape& shape : p.shapes) rows += shape.row_chunks;
    return rows;
  }
  NARROW_HOST_DEVICE static int ring_bytes(const StepParams& p) {
    const int layers = p.slots * p.unit * p.encoding.chunk_bytes, head = p.head_slots * kHeadBytes;
    return layers > head ? layers : head;
  }
  NARROW_HOST_DEVICE static int total_bytes(const StepParams& p) {
    return ring_bytes(p) + p.shapes[kStepQkv].k * 4 + work_bytes(p) + padded(p.head_dim * 4) + 128 +
           kStepKinds * static_cast<int>(sizeof(StepRun)) + padded(p.layer_count * static_cast<int>(sizeof(StepLayer))) +
           padded(all_rows(p)) + (p.slots + p.head_slots) * 16;
  }

  __device__ StepShared(std::byte* memory, const StepParams& p) {
    ring = memory;
    stream = reinterpret_cast<float*>(memory + ring_bytes(p));
    attention = stream + p.shapes[kStepQkv].k;
    x = reinterpret_cast<std::uint32_t*>(attention);
    x_sums = reinterpret_cast<float*>(x + p.widest / 2);
    partials = x_sums + sums_bytes(p) / 4;
    turns = attention + work_bytes(p) / 4;
    reduced = turns + padded(p.head_dim * 4) / 4;
    runs = reinterpret_cast<StepRun*>(reduced + 32);
    layers = reinterpret_cast<StepLayer*>(runs + kStepKinds);
    parts = reinterpret_cast<std::uint8_t*>(layers) + padded(p.layer_count * static_cast<int>(sizeof(StepLayer)));
    full = reinterpret_cast<Barrier*>(parts + padded(all_rows(p)));
    empty = full + p.slots;
    head_full = empty + p.slots;
    head_empty = head_full + p.head_slots;
  }
};

/// The copies into a ring, by one thread. Only `ahead` slots are under way at a time: as much as memory needs to be busy. More would queue
/// in front of what thread blocks read of one another's results.
class StepProducer {
 public:
  __device__ StepProducer(std::byte* ring, int slot_bytes, int slots, int ahead, Barrier* full, Barrier* empty)
      : ring_(ring), slot_bytes_(slot_bytes), slots_(slots), ahead_(ahead), full_(full), empty_(empty) {}

  __device__ void copy(const std::uint8_t* from, int bytes) {
    empty_[slot_].wait(parity_);
    if (ahead_ > 0) {
      --ahead_;
    } else {
      full_[landed_].wait(landed_parity_);
      if (++landed_ == slots_) landed_ = 0, landed_parity_ ^= 1u;
    }
    full_[slot_].arrive_expecting(static_cast<std::uint32_t>(bytes));
    copy_bulk_once(ring_ + slot_ * slot_bytes_, from, static_cast<std::uint32_t>(bytes), full_[slot_]);
    next();
  }
  __device__ void copy(const std::uint8_t* chunks, const StepRun& run, int unit, int chunk_bytes) {
    const std::uint8_t* from = chunks + static_cast<std::int64_t>(run.begin) * chunk_bytes;
    for (int left = run.count; left > 0; left -= unit, from += unit * chunk_bytes) copy(from, min(left, unit) * chunk_bytes);
  }
  /// Waits until every slot was read.
  __device__ void drain() {
    for (int i = 0; i < slots_; ++i) {
      empty_[slot_].wait(parity_);
      next();
    }
  }

 private:
  __device__ void next() {
    if (++slot_ == slots_) slot_ = 0, parity_ ^= 1u;
  }

  std::byte* ring_;
  int slot_bytes_, slots_, ahead_;
  Barrier *full_, *empty_;
  int slot_ = 0, landed_ = 0;
  unsigned parity_ = 1, landed_parity_ = 0;
};

__device__ inline void produce_step(const StepParams& p, const StepShared& shared) {
  const int unit = p.unit, chunk_bytes = p.encoding.chunk_bytes;
  StepProducer layers(shared.ring, unit * chunk_bytes, p.slots, p.ahead, shared.full, shared.empty);
  for (int layer = 0; layer < p.layer_count; ++layer)
    for (int kind = 0; kind < kStepHead; ++kind)
      layers.copy(shared.layers[layer].products[kind].chunks, shared.runs[kind], unit, chunk_bytes);
  layers.drain();
  StepProducer head(shared.ring, StepShared::kHeadBytes, p.head_slots, p.head_ahead, shared.head_full, shared.head_empty);
  head.copy(p.head.chunks, shared.runs[kStepHead], 1, StepShared::kHeadBytes);
}

/// A consumer warp's place: its group's next slot.
struct StepCursor {
  int group, warp, lane;
  int turn;  ///< slots that the group lets pass before its next one, of those that no product has taken yet
  int slot;
  unsigned parity;

  __device__ StepCursor() {
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32 % 4;
    group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
    asm volatile("" : "+r"(lane), "+r"(warp));  // kept, not computed again in every loop
    restart();
  }
  __device__ void restart() { turn = slot = group, parity = 0; }
  __device__ void advance(int slots) {
    slot += kStepGroups;
    if (slot >= slots) slot -= slots, parity ^= 1u;
  }
};

/// The slots that a product's chunks come in.
struct StepSlots {
  int unit, chunk_bytes, count;
  Barrier *full, *empty;
};

/// The thread block's run of a product: sums of each row of chunks and group, in shared.partials.
template <class D, bool kBf16, StepScales kScales>
__device__ __forceinline__ void multiply_run(const StepShared& shared, const StepSlots& ring, StepCursor& at, const StepRun& run,
                                             int depth_chunks, const StepOperand& operand) {
  constexpr int kSumsOfChunk = kChunkDepth / (kScales == StepScales::kSixteen ? 16 : 32);
  const int unit = ring.unit, count = run.count, rows = run.rows, slots = (count + unit - 1) / unit;
  StepSums<D, kBf16, kScales> sums;
  int row = 0;
  const auto flush = [&] {
    float result[2];
    sums.take(at.lane, result);
    if (at.lane % 4 == 0) {
      float* to = shared.partials + (row * kStepGroups + at.group) * 64 + at.warp * 16 + at.lane / 4;
      to[0] = result[0];
      to[8] = result[1];
    }
    ++row;
  };
  int turn = at.turn, depth = run.depth + turn * unit;
  for (; turn < slots; turn += kStepGroups) {
    while (depth >= depth_chunks) depth -= depth_chunks, flush();
    ring.full[at.slot].wait(at.parity);
    const std::byte* chunk = shared.ring + at.slot * unit * ring.chunk_bytes;
#pragma unroll 1
    for (int left = min(unit, count - turn * unit); left > 0; --left) {
      sums.add(operand, chunk, shared.x + depth * 64, shared.x_sums + depth * kSumsOfChunk, at.warp, at.lane);
      chunk += ring.chunk_bytes;
      if (++depth == depth_chunks && left > 1) depth = 0, flush();
    }
    __syncwarp();
    if (at.lane == 0) ring.empty[at.slot].arrive();
    at.advance(ring.count);
    depth += (kStepGroups - 1) * unit;
  }
  while (row < rows) flush();
  at.turn = turn - slots;
}

}  // namespace narrow::cuda::sm90
