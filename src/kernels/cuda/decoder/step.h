#pragma once
/// A decode step of one sequence in one launch: embedding, all layers, head (sm90/step_main.cuh). Plain problems on device pointers.

#include <cstdint>
#include <optional>

#include "kernels/cuda/decoder/decoder.h"
#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {

/// The products of a step: four of every layer, then the head.
enum StepKind : std::uint8_t { kStepQkv, kStepO, kStepGateUp, kStepDown, kStepHead, kStepKinds };

struct StepProduct {
  const std::uint8_t* chunks = nullptr;
  const float* factors = nullptr;
  const float* bias = nullptr;  ///< [n], or null
};

struct StepLayer {
  StepProduct products[kStepHead];
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* q_norm = nullptr;  ///< or null
  const float* k_norm = nullptr;
  int window = 0;
};

/// What the products of one kind share. Its chunks, in the order of memory, are dealt to `workers` thread blocks in equal runs; a run that
/// covers a row of chunks in part gives a part of its 64 sums. Every part has a vector of results, and whoever reads them adds the parts.
struct StepShape {
  int n = 0, k = 0;
  int row_chunks = 0, depth_chunks = 0, workers = 0;
  std::uint32_t* results = nullptr;  ///< [vectors][pitch] of StepTag's words, zeros before the first step
  int pitch = 0;
  int parts_at = 0;  ///< where the numbers of its rows' parts begin, in shared memory

  NARROW_HOST_DEVICE int chunks() const { return row_chunks * depth_chunks; }
  /// The first chunk of worker i; that of worker i + 1 ends its run.
  NARROW_HOST_DEVICE int begin_of(int worker) const {
    return static_cast<int>(static_cast<unsigned>(worker) * static_cast<unsigned>(chunks()) / static_cast<unsigned>(workers));
  }
  /// The worker that has a chunk.
  NARROW_HOST_DEVICE int owner_of(int chunk) const {
    return static_cast<int>((static_cast<unsigned>(chunk + 1) * static_cast<unsigned>(workers) - 1u) / static_cast<unsigned>(chunks()));
  }
  NARROW_HOST_DEVICE int parts_of(int row_chunk) const {
    const int first = row_chunk * depth_chunks;
    return owner_of(first + depth_chunks - 1) - owner_of(first) + 1;
  }
};

constexpr int kStepMostParts = 4;

/// A worker's run of a product's chunks.
struct StepRun {
  int begin = 0, count = 0;
  int slots = 0;                           ///< of the ring that its chunks take
  int row = 0, rows = 0;                   ///< rows of chunks that it touches
  int depth = 0;                           ///< the first chunk's place in its row
  int part = 0;                            ///< which part of its first row it has; of the others, the first
  int columns_begin = 0, columns_end = 0;  ///< chunks of x that it needs

  /// `unit`: chunks in a slot.
  NARROW_HOST_DEVICE static StepRun of(const StepShape& shape, int worker, int unit) {
    StepRun run;
    if (worker >= shape.workers) return run;
    run.begin = shape.begin_of(worker);
    run.count = shape.begin_of(worker + 1) - run.begin;
    run.slots = (run.count + unit - 1) / unit;
    run.row = run.begin / shape.depth_chunks;
    run.depth = run.begin - run.row * shape.depth_chunks;
    run.rows = (run.depth + run.count - 1) / shape.depth_chunks + 1;
    run.part = worker - shape.owner_of(run.row * shape.depth_chunks);
    run.columns_begin = run.rows == 1 ? run.depth : 0;
    run.columns_end = run.rows == 1 ? run.depth + run.count : shape.depth_chunks;
    return run;
  }
};

/// How the layers' weights are stored, and what they are multiplied with.
struct StepEncoding {
  WeightKind kind = WeightKind::kDense;
  int bits = 16;
  bool bf16 = false;                                       ///< of dense weights and x; else fp16
  int chunk_bytes = 0, scale_offset = 0, zero_offset = 0;  ///< zero_offset 0: no zero points in chunks
  ChunkScale scale = ChunkScale::kNone;
  int step_shift = 7;      ///< logarithm of the columns that share a scale
  int integer_offset = 0;  ///< of signed integers: 2^(bits-1)
};

/// How scales change along k: not at all; every 128 columns, in fp32; every 32, or 16, in bf16; every 32 or a multiple, or 16, in either.
enum class StepScales : std::uint8_t { kRow, kChunk, kPacked32, kPacked16, kBlocks, kSixteen };
/// Those of 16 columns are compiled for formats of up to 4 bits.
constexpr bool has_sixteen(int bits) { return bits <= 4; }
NARROW_HOST_DEVICE constexpr StepScales scales_of(const StepEncoding& e) {
  if (e.scale == ChunkScale::kNone) return StepScales::kRow;
  if (e.scale == ChunkScale::kFloat && e.step_shift == 7) return StepScales::kChunk;
  const bool packed = e.scale == ChunkScale::kBf16 && e.zero_offset == 0;
  if (e.step_shift == 4) return packed ? StepScales::kPacked16 : StepScales::kSixteen;
  return packed && e.step_shift == 5 ? StepScales::kPacked32 : StepScales::kBlocks;
}
/// Scales of rows or of 128 columns, and no zero points in chunks.
NARROW_HOST_DEVICE constexpr bool has_plain_scales(const StepEncoding& e) {
  const StepScales scales = scales_of(e);
  return e.zero_offset == 0 && (scales == StepScales::kRow || scales == StepScales::kChunk);
}
/// Steps of 16 columns that share a scale, at least.
NARROW_HOST_DEVICE constexpr int steps_of(StepScales scales) {
  if (scales == StepScales::kRow || scales == StepScales::kChunk) return 8;
  return scales == StepScales::kPacked32 || scales == StepScales::kBlocks ? 2 : 1;
}

/// Consumer threads: groups of four warps, each of which has 16 rows of a chunk. Producers: two threads of a warpgroup with few registers.
constexpr int kStepGroups = 4, kStepGroupWarps = 4, kStepConsumers = kStepGroups * kStepGroupWarps * 32;
constexpr int kStepProducers = 2, kStepThreads = kStepConsumers + 128;
/// Slots of the ring, at most.
constexpr int kStepMostSlots = 32;
/// The stream's largest size: four values of it are a thread's at a time, up to four times.
constexpr int kStepMostHidden = kStepConsumers * 16;

/// Shared memory of attention: the group's queries, key and value; then of every warp values, largest scores and totals.
NARROW_HOST_DEVICE constexpr int attend_bytes(int group, int head_dim) {
  const int heads = group == 1 ? 1 : 2, warps = kStepConsumers / 32;
  return ((group + 2) * head_dim + warps * heads * (head_dim + 2)) * 4;
}
/// Floats of one split's softmax of a head: its values, the largest score, the total.
NARROW_HOST_DEVICE constexpr int softmax_pitch(int head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

struct StepParams {
  const StepLayer* layers = nullptr;
  int layer_count = 0;
  StepProduct head;
  StepShape shapes[kStepKinds];
  StepEncoding encoding;  ///< of the layers; the head is dense, in the type of x
  StepScales scales = StepScales::kRow;
  int sum_columns = 0;            ///< columns whose x is added up for zero points
  int unit = 1;                   ///< chunks of the layers in a slot of the ring; the head's slots have one
  int slots = 0, head_slots = 0;  ///< multiples of kStepGroups: a slot is always the same group's, and producer's
  int ahead = 0;                  ///< slots that may be under way, a multiple of the producers
  int gap = 0;                    ///< slots that may be under way between products, of later ones
  int most_columns = 0;           ///< chunks of x that a worker's run needs at most
  int most_run_bytes = 0;         ///< of x and sums of a worker's run at most
  int vectors = 1;                ///< of results: the most parts that a row of chunks has

  int heads = 0, kv_heads = 0, head_dim = 0, splits = 1;
  CacheKind cache_kind = CacheKind::kFp16;
  const CacheView* cache = nullptr;
  const std::int32_t* token = nullptr;
  const std::int32_t* position = nullptr;
  const void* embedding = nullptr;
  DType embedding_type = DType::kF16;
  const float* final_norm = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  float epsilon = 0.0f, score_scale = 1.0f;

  std::uint32_t* softmaxes = nullptr;  ///< [heads][splits][softmax_pitch] of StepTag's words: values, largest score, total; zeros before
                                       ///< the first step
  std::uint32_t* arrivals = nullptr;   ///< three words, zero before the first step: arrivals so far, those of earlier steps, steps
  float* logits = nullptr;
};

/// What the kernel needs to know of a weight; nothing where no kernel was compiled for it: floats that are not stored for their own
/// mantissa, and, of more than 4 bits, scales that change every 16 columns.
std::optional<StepEncoding> step_encoding(const WeightView& w, bool bf16);
/// A product [n, k] dealt to at most `workers` thread blocks; its parts are not set.
StepShape step_shape(int n, int k, int workers);
/// The most parts that a row of its chunks has.
int most_parts(const StepShape& shape);
/// Whether attention has caches of the kind.
bool has_step_cache(CacheKind kind);
/// Sets the ring, from shapes, encoding and heads; false where shared memory does not hold it.
bool plan_step(StepParams& params);
/// One thread block on each of `blocks` multiprocessors.
int launch_step(const StepParams& params, int blocks, Stream stream);

}  // namespace narrow::cuda
