#pragma once
/// The weights' way through a step: two threads copy all chunks of all products, in order, into a ring of shared memory, every other slot
/// each; they wait for free slots, never for results. A slot has up to `unit` chunks, and the groups of consumer warps take slots in turns.
/// The head, whose chunks are larger, takes the ring's memory over when the layers' slots are read.
///
/// What thread blocks tell each other queues behind the weights under way to them. So between two products, while sums are handed over and
/// inputs are made, only `gap` slots of later products are.

#include <type_traits>

#include "kernels/cuda/sm90/step_multiply.cuh"

namespace narrow::cuda::sm90 {

/// A thread block's shared memory: what has one size for all models comes first, so that its places are known while compiling.
struct StepShared {
  struct Fixed {
    Barrier full[kStepMostSlots], empty[kStepMostSlots], head_full[kStepMostSlots], head_empty[kStepMostSlots];  ///< one per slot
    Barrier handover;     ///< of the ring to the head
    volatile int window;  ///< StepWindow's
    float reduced[32];
    StepRun runs[kStepKinds];       ///< of this thread block
    alignas(16) StepParams params;  ///< a copy
    CacheView cache;                ///< a copy
    int position;
    std::uint32_t steps;  ///< before this one
  };

  Fixed& fixed;
  StepLayer* layers;    ///< all
  std::uint8_t* parts;  ///< of each product's rows of chunks, at its parts_at
  float* turns;         ///< cosines, then sines, of the step's position
  float* stream;        ///< [hidden], the same in every thread block
  float* attention;     ///< its memory, where that of the products is otherwise: x_scales, x_sums, x, partials
  float* x_scales;      ///< of the digits: two of a chunk, of the lower ones and the higher ones
  float* x_sums;        ///< of x in digits, per columns that share a scale
  std::uint32_t* x;     ///< of the run's columns, in the order of fragments (step_multiply.cuh): high and low of a value, or four digits
  float* partials;      ///< [groups][64] of the run's first row of chunks; the next rows' are before it, towards x
  std::byte* ring;

  static constexpr int kHeadBytes = kChunkRows * kChunkDepth * 2;  ///< of a slot
  static constexpr int kRowPartials = kStepGroups * kChunkRows;    ///< sums of a row of chunks

  NARROW_HOST_DEVICE static constexpr int padded(int bytes) { return (bytes + 15) / 16 * 16; }
  NARROW_HOST_DEVICE static bool has_digits(const StepParams& p) { return p.encoding.kind == WeightKind::kInteger; }
  NARROW_HOST_DEVICE static int layers_bytes(const StepParams& p) { return padded(p.layer_count * static_cast<int>(sizeof(StepLayer))); }
  NARROW_HOST_DEVICE static int parts_bytes(const StepParams& p) {
    return padded(p.shapes[kStepHead].parts_at + p.shapes[kStepHead].row_chunks);
  }
  /// Of x, and of sums, in a run of a product.
  NARROW_HOST_DEVICE static int run_bytes(const StepParams& p, const StepRun& run) {
    return (run.columns_end - run.columns_begin) * kChunkDepth * (p.encoding.bf16 ? 2 : 4) + run.rows * kRowPartials * 4;
  }
  NARROW_HOST_DEVICE static int scales_bytes(const StepParams& p) { return has_digits(p) ? padded(p.most_columns * 8) : 0; }
  NARROW_HOST_DEVICE static int sums_bytes(const StepParams& p) {
    return has_digits(p) ? padded(p.most_columns * (8 / steps_of(scales_of(p.encoding))) * 4) : 0;
  }
  NARROW_HOST_DEVICE static int work_bytes(const StepParams& p) {
    const int products = scales_bytes(p) + sums_bytes(p) + p.most_run_bytes;
    const int attention = padded(attend_bytes(p.heads / p.kv_heads, p.head_dim));
    return products > attention ? products : attention;
  }
  NARROW_HOST_DEVICE static int ring_bytes(const StepParams& p) {
    const int layers = p.slots * p.unit * p.encoding.chunk_bytes, head = p.head_slots * kHeadBytes;
    return layers > head ? layers : head;
  }
  /// Whole lines of 128 bytes: copies to a ring that begins elsewhere take a step 5 to 10 % longer.
  NARROW_HOST_DEVICE static int before_ring(const StepParams& p) {
    const int bytes = padded(static_cast<int>(sizeof(Fixed))) + layers_bytes(p) + parts_bytes(p) + padded(p.head_dim * 4) +
                      padded(p.shapes[kStepQkv].k * 4) + work_bytes(p);
    return (bytes + 127) / 128 * 128;
  }
  NARROW_HOST_DEVICE static int total_bytes(const StepParams& p) { return before_ring(p) + ring_bytes(p); }

  __device__ StepShared(std::byte* memory, const StepParams& p) : fixed(*reinterpret_cast<Fixed*>(memory)) {
    std::byte* at = memory + padded(static_cast<int>(sizeof(Fixed)));
    const auto take = [&](int bytes) {
      std::byte* from = at;
      at += bytes;
      return from;
    };
    layers = reinterpret_cast<StepLayer*>(take(layers_bytes(p)));
    parts = reinterpret_cast<std::uint8_t*>(take(parts_bytes(p)));
    turns = reinterpret_cast<float*>(take(padded(p.head_dim * 4)));
    stream = reinterpret_cast<float*>(take(padded(p.shapes[kStepQkv].k * 4)));
    std::byte* work = take(work_bytes(p));
    attention = reinterpret_cast<float*>(work);
    x_scales = reinterpret_cast<float*>(work);
    x_sums = x_scales + scales_bytes(p) / 4;
    x = reinterpret_cast<std::uint32_t*>(x_sums + sums_bytes(p) / 4);
    partials = reinterpret_cast<float*>(x) + p.most_run_bytes / 4 - kRowPartials;
    ring = memory + before_ring(p);
  }
};

/// How far a thread block's consumers are: twice their phase while they multiply, one more when they have done so.
struct StepWindow {
  volatile int* state;

  __device__ void open(int phase) const { *state = 2 * phase; }
  __device__ void close(int phase) const { *state = 2 * phase + 1; }
  /// Whether copies for a phase are held back.
  __device__ bool is_closed_to(int phase) const {
    const int now = *state;
    return now % 2 != 0 && phase > now / 2;
  }
};

/// The copies into every kStepProducers-th slot of a ring, by one thread.
class StepProducer {
 public:
  /// Slots of its own that may be under way, at most all: ahead, and gap where the window is closed.
  __device__ StepProducer(std::byte* ring, int slot_bytes, int slots, Barrier* full, Barrier* empty, StepWindow window, int first,
                          int ahead, int gap)
      : ring_(ring),
        slot_bytes_(slot_bytes),
        slots_(slots),
        ahead_(ahead),
        gap_(gap),
        full_(full),
        empty_(empty),
        window_(window),
        turn_(first),
        slot_(first),
        landed_(first) {}

  __device__ void copy(const std::uint8_t* chunks, const StepRun& run, int unit, int chunk_bytes, int phase) {
    const int count = unit == 1 ? run.count : run.slots;
    const std::uint8_t* from = chunks + static_cast<std::int64_t>(run.begin + turn_ * unit) * chunk_bytes;
    for (; turn_ < count; turn_ += kStepProducers, from += kStepProducers * unit * chunk_bytes) {
      empty_[slot_].wait(parity_);
      while (under_way_ >= gap_ && window_.is_closed_to(phase))
        if (under_way_ > 0) land();
      const auto bytes = static_cast<std::uint32_t>(min(run.count - turn_ * unit, unit) * chunk_bytes);
      full_[slot_].arrive_expecting(bytes);
      copy_bulk_once(ring_ + slot_ * slot_bytes_, from, bytes, full_[slot_]);
      next(slot_, parity_);
      if (++under_way_ == ahead_) land();  // before its slot's next round
    }
    turn_ -= count;
  }
  /// Waits until every slot of its own was read.
  __device__ void drain() {
    for (; turn_ < slots_; turn_ += kStepProducers) {
      empty_[slot_].wait(parity_);
      next(slot_, parity_);
    }
  }

 private:
  __device__ void land() {
    full_[landed_].wait(landed_parity_);
    next(landed_, landed_parity_);
    --under_way_;
  }
  __device__ void next(int& slot, unsigned& parity) const {
    slot += kStepProducers;
    if (slot >= slots_) slot -= slots_, parity ^= 1u;
  }

  std::byte* ring_;
  int slot_bytes_, slots_, ahead_, gap_;
  Barrier *full_, *empty_;
  StepWindow window_;
  int turn_;  ///< slots that it lets pass before its next one, of those that no product has taken yet
  int slot_, landed_, under_way_ = 0;
  unsigned parity_ = 1, landed_parity_ = 0;
};

__device__ inline void produce_step(const StepParams& p, const StepShared& shared, int worker) {
  const int unit = p.unit, chunk_bytes = p.encoding.chunk_bytes;
  const StepWindow window{&shared.fixed.window};
  const int ahead = p.ahead / kStepProducers, gap = (p.gap + worker) / kStepProducers;
  StepProducer layers(shared.ring, unit * chunk_bytes, p.slots, shared.fixed.full, shared.fixed.empty, window, worker, ahead, gap);
  for (int layer = 0; layer < p.layer_count; ++layer)
    for (int kind = 0; kind < kStepHead; ++kind)
      layers.copy(shared.layers[layer].products[kind].chunks, shared.fixed.runs[kind], unit, chunk_bytes, layer * kStepHead + kind);
  layers.drain();
  shared.fixed.handover.arrive();
  shared.fixed.handover.wait(0);
  StepProducer head(shared.ring, StepShared::kHeadBytes, p.head_slots, shared.fixed.head_full, shared.fixed.head_empty, window, worker,
                    p.head_slots / kStepProducers, 1);
  head.copy(p.head.chunks, shared.fixed.runs[kStepHead], 1, StepShared::kHeadBytes, p.layer_count * kStepHead);
}

/// A consumer warp's place: its group's next slot.
struct StepCursor {
  int group, lane;
  int part;  ///< which 16 rows of a chunk are its own
  int turn;  ///< slots that the group lets pass before its next one, of those that no product has taken yet
  int slot;
  unsigned parity;

  __device__ StepCursor() {
    lane = static_cast<int>(threadIdx.x) % 32;
    part = static_cast<int>(threadIdx.x) / 32 % kStepGroupWarps;
    group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / (kStepGroupWarps * 32), 0);
    asm volatile("" : "+r"(lane), "+r"(part));  // kept, not computed again in every loop
    restart();
  }
  __device__ void restart() { turn = slot = group, parity = 0; }
  __device__ void advance(int slots) {
    const bool wraps = slot + kStepGroups >= slots;
    slot = wraps ? group : slot + kStepGroups;
    parity ^= wraps ? 1u : 0u;
  }
};

/// The slots that a product's chunks come in.
struct StepSlots {
  int unit, chunk_bytes, count;
  Barrier *full, *empty;
};

/// The thread block's run of a product: sums of each row of chunks and group, in shared.partials.
template <class D, bool kBf16, StepScales kScales, bool kZeros>
__device__ __forceinline__ void multiply_run(const StepShared& shared, const StepSlots& ring, StepCursor& at, const StepRun& run,
                                             int depth_chunks, const StepOperand& operand) {
  constexpr bool kDigits = D::kKind == WeightKind::kInteger;
  // Chunks of plain scales have a size that is known while compiling.
  constexpr bool kKnown = !kZeros && (kScales == StepScales::kRow || kScales == StepScales::kChunk);
  constexpr int kBytes = kChunkRows * kChunkDepth / 8 * D::kBits + (kScales == StepScales::kChunk ? kChunkRows * 4 : 0);
  const int chunk_bytes = kKnown ? kBytes : ring.chunk_bytes;
  const int unit = ring.unit, count = run.count, rows = run.rows, slots = unit == 1 ? count : run.slots;
  std::conditional_t<kDigits, StepIntegerSums<D, kScales, kZeros>, StepSums<D, kBf16, kScales>> sums;
  int row = 0;
  const auto flush = [&] {
    float result[2];
    sums.take(result);
    if (at.lane % 4 == 0) {
      float* to = shared.partials - row * StepShared::kRowPartials + at.group * kChunkRows + at.part * 16 + at.lane / 4;
      to[0] = result[0], to[8] = result[1];
    }
    ++row;
  };
  const auto add = [&](const std::byte* chunk, int column) {
    if constexpr (kDigits)
      sums.add(operand, chunk, shared.x + column * kChunkDepth, shared.x_scales[column * 2 + at.lane % 2],
               shared.x_sums + column * (8 / steps_of(kScales)), at.part, at.lane);
    else
      sums.add(operand, chunk, shared.x + column * kStepChunk<kBf16>, at.part, at.lane);
  };
  // Columns are counted from the run's first; run.columns_begin is zero where there is more than one row.
  const int end = depth_chunks - run.columns_begin, pairs = unit == 2 ? count / 2 : 0;
  int turn = at.turn, column = run.depth - run.columns_begin + turn * unit;
#pragma unroll 1
  for (; turn < slots; turn += kStepGroups) {
#pragma unroll 1
    while (column >= end) column -= end, flush();
    wait_at(ring.full[at.slot].address(), at.parity);
    const std::byte* chunk = shared.ring + at.slot * unit * chunk_bytes;
    if (turn < pairs && column + 1 < end) {  // at once: the second's words are on their way while the first is multiplied
      add(chunk, column);
      add(chunk + chunk_bytes, column + 1);
      column += 2;
    } else {
#pragma unroll 1
      for (int left = min(unit, count - turn * unit); left > 0; --left) {
        add(chunk, column);
        chunk += chunk_bytes;
        if (++column == end && left > 1) column = 0, flush();
      }
    }
    __syncwarp();
    if (at.lane == 0) ring.empty[at.slot].arrive();
    at.advance(ring.count);
    column += (kStepGroups - 1) * unit;
  }
#pragma unroll 1
  while (row < rows) flush();
  at.turn = turn - slots;
}

}  // namespace narrow::cuda::sm90
