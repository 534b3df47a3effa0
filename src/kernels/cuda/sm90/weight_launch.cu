/// From a problem and a plan to a launch: tensor maps, slots, the instance.

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/weight_kernels.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

/// Of a thread block: all of a multiprocessor, or half of it.
constexpr int kMostShared = 232448, kMostStreamShared = 115712, kMostSlots = 12, kFewestSlots = 2;

constexpr auto kLists = {weight_int2, weight_int3, weight_int4,    weight_int8,    weight_fp3,     weight_fp4,     weight_fp5,
                         weight_fp6,  weight_fp8,  weight_any_fp4, weight_any_fp5, weight_any_fp6, weight_any_fp8, weight_dense};

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Floats stored for another mantissa than theirs (or for a special meaning of the top exponent) take the decoder that is told at run time.
bool needs_any(const WeightView& w) {
  return w.layout.kind == WeightKind::kFloat &&
         (w.scheme.element.mantissa_bits != w.layout.mantissa || w.scheme.element.specials == Specials::kIeee);
}

/// nvfp4's products of codes and scales have 6 significant bits, and none is below fp16's smallest step.
bool is_nvfp4(const WeightView& w) {
  return w.layout.scale == ChunkScale::kBf16 && w.layout.step == 16 && w.scheme.scale == kFp8E4m3 && w.scheme.element == kFp4E2m1;
}
/// Of tiles of many tokens. Steady weights (weight_prepare.cu) have powers of two that fit into 16 bits with the codes, or scales whose
/// quotients are harmless.
ScaleMode mode_of(const WeightView& w) {
  if (w.layout.scale == ChunkScale::kNone) return ScaleMode::kRows;
  if (is_nvfp4(w) || (w.is_steady && w.scheme.scale == kE8m0)) return ScaleMode::kFold;
  return w.is_steady && w.layout.step == kChunkDepth ? ScaleMode::kChunk : ScaleMode::kInside;
}

/// What splits by mma of warps take: integers, and floats with scales of rows, of chunks, or 16-bit ones inside chunks. Other floats are
/// rare: compile time.
bool is_common(const WeightLayoutInfo& layout) {
  return layout.kind == WeightKind::kInteger || layout.scale == ChunkScale::kNone || layout.step == kChunkDepth ||
         (layout.scale == ChunkScale::kBf16 && layout.step <= 32);
}

const WeightInstance* find_instance(const WeightProblem& problem, int config) {
  const WeightView& w = problem.w;
  if (!w.is_prepared) return nullptr;
  const WeightConfig& c = weight_configs()[static_cast<std::size_t>(config)];
  const bool inside_chunks = w.layout.scale != ChunkScale::kNone && w.layout.step < kChunkDepth;
  if (!c.is_stream() && c.promotes != (mode_of(w) == ScaleMode::kInside)) return nullptr;
  if (c.splits && c.is_stream() && !is_common(w.layout)) return nullptr;
  // No tiles of many tokens take zero points that change inside chunks.
  if (!c.is_stream() && inside_chunks && w.layout.has_zeros) return nullptr;
  const bool dense = w.layout.kind == WeightKind::kDense, bf16 = problem.x_type == DType::kBf16;
  if (dense && (w.scheme.element == kBf16) != bf16) return nullptr;
  for (const auto list : kLists)
    for (const WeightInstance& one : list())
      if (one.config == config && one.kind == w.layout.kind && one.bits == w.layout.bits && one.bf16 == bf16 && one.any == needs_any(w) &&
          (one.kind != WeightKind::kFloat || one.mantissa == w.layout.mantissa))
        return &one;
  return nullptr;
}

/// x in boxes of several planes of 64 columns.
MatrixMap map_of_x(const WeightProblem& problem, int box_rows, int planes) {
  MatrixMap map{problem.x, 2, 64, problem.m, problem.x_pitch * 2, 128, box_rows};
  map.stripes = {.pitch = 128, .count = ceil_div(problem.w.k, 64), .box = planes};
  return map;
}

/// As many slots as fit; of tiles of 256 tokens those of tokens are half as deep as chunks and few, the rest is for weights.
bool set_slots(WeightParams& p, const WeightInstance& one, const WeightConfig& c) {
  if (c.tokens == 256) {
    for (p.token_slots = 5; p.token_slots >= 3; --p.token_slots)
      for (p.weight_slots = 6; p.weight_slots >= (p.token_slots == 3 ? 2 : 3); --p.weight_slots)
        if (one.shared_bytes(p.weight_slots, p.token_slots, p.chunk_bytes, p.parts) <= kMostShared) return true;
    return false;
  }
  // Warpgroups that take chunks in turn have slots of their own: in a ring whose length their number does not divide, a slot is filled for
  // others between two turns of a warpgroup, and where that copy is late its wait for the second turn would end at once, with the first.
  // Two of tokens, since products may still read one when their warpgroup waits for the next.
  if (one.depth_groups > 1) {
    for (p.token_slots = kMostSlots - one.depth_groups; p.token_slots >= 2 * one.depth_groups; p.token_slots -= one.depth_groups)
      for (const int more : {one.depth_groups, 0, -one.depth_groups}) {  // weights come from farther away than tokens
        p.weight_slots = p.token_slots + more;
        if (one.shared_bytes(p.weight_slots, p.token_slots, p.chunk_bytes, p.parts) <= kMostShared) return true;
      }
    return false;
  }
  const int per_chunk = c.tokens * kChunkDepth * 2 / one.token_bytes;  // slots of tokens
  for (p.weight_slots = kMostSlots; p.weight_slots >= kFewestSlots; --p.weight_slots) {
    p.token_slots = p.weight_slots * per_chunk;
    if (one.shared_bytes(p.weight_slots, p.token_slots, p.chunk_bytes, p.parts) <= kMostShared) return true;
  }
  return false;
}

/// What all kernels are told.
WeightParams params_of(const WeightProblem& problem, const WeightPlan& plan, const WeightConfig& c) {
  const WeightView& w = problem.w;
  const Format& element = w.scheme.element;
  WeightParams p{};
  p.chunks = w.chunks;
  p.factors = w.factors;
  p.m = problem.m;
  p.n = w.n;
  p.row_chunks = w.layout.row_chunks;
  p.depth_chunks = w.layout.depth_chunks;
  p.chunk_bytes = w.layout.chunk_bytes();
  p.scale_offset = w.layout.code_bytes();
  p.zero_offset = w.layout.has_zeros ? w.layout.code_bytes() + w.layout.scale_bytes() : 0;
  p.scale = w.layout.scale;
  p.step = w.layout.scale == ChunkScale::kNone ? kChunkDepth : w.layout.step;
  p.mode = mode_of(w);
  p.step_shift = std::countr_zero(static_cast<unsigned>(p.step));
  p.integer_offset = w.layout.kind == WeightKind::kInteger && element.is_signed ? 1 << (w.layout.bits - 1) : 0;
  if (w.layout.kind == WeightKind::kFloat) {
    p.shift = static_cast<std::uint32_t>(w.layout.mantissa - element.mantissa_bits) & 31u;
    p.magnitude = (((1u << (element.bits - 1)) - 1u) << (10 - element.mantissa_bits)) * 0x00010001u;
  }
  p.row_tiles = ceil_div(w.layout.row_chunks, std::max(1, c.row_groups));
  p.token_tiles = ceil_div(problem.m, c.tokens);
  p.band = std::min(8, p.token_tiles);
  p.parts = plan.parts;
  p.workers = plan.workers;
  if (plan.is_even) {
    static std::atomic<unsigned long long> launches{0x9E3779B97F4A7C15ull};  // words that are in no memory by chance
    p.band = 1;  // thread blocks that begin with the same row of tiles stay in it together
    p.partials = static_cast<float4*>(problem.workspace);
    p.partials_there = reinterpret_cast<unsigned long long*>(p.partials + std::int64_t{p.workers} * c.row_groups * c.tokens * 16);
    p.nonce = launches += 0x9E3779B97F4A7C15ull;
  }
  p.epilogue = problem.epilogue;
  p.y = problem.y;
  p.y_pitch = problem.y_pitch;
  return p;
}

/// Nothing but a conversion to 16 bits at the end.
bool is_plain(const WeightEpilogue& e) {
  return e.bias == nullptr && e.activation == Activation::kNone && e.multiplier == nullptr && e.residual == nullptr && e.out != DType::kF32;
}

/// The next kernel's thread blocks may start early; all of them wait before they touch what this one writes.
int launch(const WeightInstance& one, const WeightParams& p, const CUtensorMap& x, const CUtensorMap& y, int blocks, int shared,
           Stream stream) {
  if (const cudaError_t error = cudaFuncSetAttribute(one.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared)) return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(p.parts), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(static_cast<unsigned>(one.threads));
  launch.dynamicSmemBytes = static_cast<std::size_t>(shared);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = p.parts > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&launch, one.kernel, p, x, y);
}

int launch_stream(const WeightProblem& problem, const WeightPlan& plan, const WeightInstance& one, const WeightConfig& c, WeightParams p,
                  Stream stream) {
  p.wide = plan.wide;
  p.wide_shift = std::countr_zero(static_cast<unsigned>(plan.wide));
  p.depth = 8 / plan.wide;
  p.grain = plan.wide == 1 ? 1 : 2;
  const int grains = ceil_div(p.n, p.grain * kGroupRows);
  p.grains = grains / p.workers;
  p.more_grains = grains % p.workers;
  p.slot_bytes = 4 * p.chunk_bytes;
  p.box_rows = std::min(p.m, c.tokens);
  p.token_bytes = stream_token_bytes(p.wide, p.box_rows);
  p.plain_stores = is_plain(p.epilogue);
  const auto bytes = [&](int slots) { return stream_shared_bytes(slots, p.wide, p.box_rows, c.tokens, p.chunk_bytes); };
  const int most = plan.is_whole || bytes(kFewestSlots) > kMostStreamShared ? kMostShared : kMostStreamShared;
  for (p.weight_slots = kMostStreamSlots; p.weight_slots > 1 && bytes(p.weight_slots) > most;) --p.weight_slots;
  CUtensorMap x{};
  if (!encode_matrix_map(x, map_of_x(problem, p.box_rows, 2 * p.depth))) return cudaErrorInvalidValue;
  return launch(one, p, x, {}, p.workers, bytes(p.weight_slots), stream);
}

int launch_split(const WeightProblem& problem, const WeightPlan& plan, const WeightInstance& one, const WeightConfig& c, WeightParams p,
                 Stream stream) {
  p.wide = plan.wide;
  p.wide_shift = std::countr_zero(static_cast<unsigned>(plan.wide));
  p.depth = 8 / plan.wide;
  p.slot_bytes = 4 * p.chunk_bytes;
  p.box_rows = c.is_stream() ? std::min(p.m, c.tokens) : c.tokens;  // wgmma takes all
  p.token_bytes = stream_token_bytes(p.wide, p.box_rows);
  p.plain_stores = is_plain(p.epilogue);
  const int depth_warps = c.is_stream() ? p.depth : 1;
  const auto bytes = [&](int slots) {
    return split_shared_bytes(slots, p.wide, p.box_rows, c.tokens, p.chunk_bytes, p.parts, depth_warps);
  };
  const int most = bytes(kFewestSlots) > kMostStreamShared ? kMostShared : kMostStreamShared;
  for (p.weight_slots = kMostStreamSlots; p.weight_slots > 1 && bytes(p.weight_slots) > most;) --p.weight_slots;
  CUtensorMap x{};
  if (!encode_matrix_map(x, map_of_x(problem, p.box_rows, 2 * p.depth))) return cudaErrorInvalidValue;
  return launch(one, p, x, {}, p.workers * p.parts, bytes(p.weight_slots), stream);
}

}  // namespace

bool has_weight_config(const WeightProblem& problem, int config) { return find_instance(problem, config) != nullptr; }

int launch_weight_product(const WeightProblem& problem, const WeightPlan& plan, Stream stream) {
  const WeightConfig& c = weight_configs()[static_cast<std::size_t>(plan.config)];
  const WeightInstance* one = find_instance(problem, plan.config);
  if (one == nullptr) return cudaErrorInvalidValue;
  if (plan.is_even && problem.workspace_size < even_workspace(c, plan.workers)) return cudaErrorInvalidValue;
  WeightParams p = params_of(problem, plan, c);
  if (c.splits) return launch_split(problem, plan, *one, c, p, stream);
  if (c.is_stream()) return launch_stream(problem, plan, *one, c, p, stream);
  if (!set_slots(p, *one, c)) return cudaErrorInvalidConfiguration;
  p.box_stores = is_plain(problem.epilogue) && problem.y_pitch % 8 == 0 && is_aligned(problem.y, 16);
  CUtensorMap x{}, y{};
  if (!encode_matrix_map(x, map_of_x(problem, c.tokens, one->token_bytes / (c.tokens * 128)))) return cudaErrorInvalidValue;
  if (p.box_stores && !encode_matrix_map(y, {problem.y, 2, problem.w.n, problem.m, problem.y_pitch * 2, 128, 32}))
    return cudaErrorInvalidValue;
  const int shared = one->shared_bytes(p.weight_slots, p.token_slots, p.chunk_bytes, p.parts);
  return launch(*one, p, x, y, p.workers * p.parts, shared, stream);
}

}  // namespace narrow::cuda
