/// From a model's shapes to the launch of its decode step.

#include <algorithm>
#include <bit>

#include "kernels/cuda/sm90/step_kernels.h"
#include "kernels/cuda/sm90/step_ring.cuh"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kMostShared = 232448, kSlotBytes = 10240, kGapBytes = 20480, kLargeSlot = 16384;
/// Two chunks of up to so many bytes share a slot, since a warp takes two at once.
constexpr int kTwinBytes = 6144;
/// Bytes of weights that are under way at most, where holds_back.
constexpr int kAheadBytes = 73728;

/// Whether fewer weights than the ring holds are under way: as measured, formats of 6 to 8 bits and plain integers of 4 want that, the
/// others all of the ring.
bool holds_back(const StepEncoding& e) {
  return (e.bits >= 6 && e.bits <= 8) || (e.bits == 4 && e.kind == WeightKind::kInteger && has_plain_scales(e));
}

constexpr auto kLists = {step_integers, step_integers_wide, step_floats, step_floats_wide, step_dense};

const StepInstance* find_instance(const StepEncoding& e) {
  for (const auto list : kLists)
    for (const StepInstance& one : list())
      if (one.kind == e.kind && one.bits == e.bits && one.bf16 == e.bf16 && one.plain == has_plain_scales(e)) return &one;
  return nullptr;
}

}  // namespace

std::optional<StepEncoding> step_encoding(const WeightView& w, bool bf16) {
  if (!w.is_prepared) return std::nullopt;
  const WeightLayoutInfo& layout = w.layout;
  const Format& element = w.scheme.element;
  if (layout.kind == WeightKind::kFloat && (element.mantissa_bits != stored_mantissa(layout.bits) || element.specials == Specials::kIeee))
    return std::nullopt;
  if (layout.kind == WeightKind::kDense && (element == kBf16) != bf16) return std::nullopt;
  StepEncoding e;
  e.kind = layout.kind;
  e.bits = layout.bits;
  e.bf16 = bf16;
  e.chunk_bytes = layout.chunk_bytes();
  e.scale_offset = layout.code_bytes();
  e.zero_offset = layout.has_zeros ? layout.code_bytes() + layout.scale_bytes() : 0;
  e.scale = layout.scale;
  const int step = layout.scale == ChunkScale::kNone ? kChunkDepth : layout.step;
  e.step_shift = std::countr_zero(static_cast<unsigned>(step));
  if (step < 32 && !has_sixteen(e.bits)) return std::nullopt;
  e.integer_offset = layout.kind == WeightKind::kInteger && element.is_signed ? 1 << (layout.bits - 1) : 0;
  return find_instance(e) != nullptr ? std::optional(e) : std::nullopt;
}

StepShape step_shape(int n, int k, int workers) {
  StepShape shape;
  shape.n = n;
  shape.k = k;
  shape.row_chunks = (n + kChunkRows - 1) / kChunkRows;
  shape.depth_chunks = (k + kChunkDepth - 1) / kChunkDepth;
  shape.pitch = shape.row_chunks * kChunkRows;
  // Whole thread blocks for each row of chunks where that leaves few idle, or where rows would have too many parts.
  const int whole = shape.row_chunks * std::clamp(workers / shape.row_chunks, 1, std::min(kStepMostParts, shape.depth_chunks));
  shape.workers = std::min(workers, shape.chunks());
  if (whole <= workers && (whole * 10 >= workers * 9 || most_parts(shape) > kStepMostParts)) shape.workers = whole;
  return shape;
}

int most_parts(const StepShape& shape) {
  int most = 1;
  for (int row = 0; row < shape.row_chunks; ++row) most = std::max(most, shape.parts_of(row));
  return most;
}

bool has_step_cache(CacheKind kind) { return kind == CacheKind::kFp32 || kind == CacheKind::kFp16 || kind == CacheKind::kBf16; }

bool plan_step(StepParams& p) {
  p.scales = scales_of(p.encoding);
  p.sum_columns = steps_of(p.scales) * 16;
  p.most_columns = p.most_run_bytes = 0;
  p.vectors = 1;
  int parts = 0;
  for (StepShape& shape : p.shapes) {
    p.vectors = std::max(p.vectors, most_parts(shape));
    shape.parts_at = parts;
    parts += shape.row_chunks;
    for (int worker = 0; worker < shape.workers; ++worker) {
      const StepRun run = StepRun::of(shape, worker, 1);
      p.most_columns = std::max(p.most_columns, run.columns_end - run.columns_begin);
      p.most_run_bytes = std::max(p.most_run_bytes, StepShared::run_bytes(p, run));
    }
  }
  p.unit = std::max(p.encoding.chunk_bytes <= kTwinBytes ? 2 : 1, kSlotBytes / p.encoding.chunk_bytes);
  // As many slots as fit.
  p.slots = p.head_slots = kStepGroups;
  if (StepShared::total_bytes(p) > kMostShared) return false;
  const auto grow = [&](int& slots) {
    while (slots <= kStepMostSlots && StepShared::total_bytes(p) <= kMostShared) slots += kStepGroups;
    slots -= kStepGroups;
  };
  grow(p.slots);
  grow(p.head_slots);
  const int slot_bytes = p.unit * p.encoding.chunk_bytes;
  p.gap = std::max(slot_bytes < kLargeSlot ? 2 : 1, kGapBytes / slot_bytes);
  p.ahead = p.slots;
  if (holds_back(p.encoding)) p.ahead = std::clamp(kAheadBytes / slot_bytes, kStepProducers, p.slots) / kStepProducers * kStepProducers;
  return true;
}

int launch_step(const StepParams& p, int blocks, Stream stream) {
  const StepInstance* one = find_instance(p.encoding);
  if (one == nullptr) return cudaErrorInvalidValue;
  const int shared = StepShared::total_bytes(p);
  if (const cudaError_t error = cudaFuncSetAttribute(one->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared)) return error;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(kStepThreads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(shared);
  launch.stream = stream;
  launch.attrs = &together;
  launch.numAttrs = 1;
  return cudaLaunchKernelEx(&launch, one->kernel, p);
}

}  // namespace narrow::cuda
