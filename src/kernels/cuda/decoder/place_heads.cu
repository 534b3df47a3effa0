/// Norms of q and k, RoPE, and the cache's new rows, in one kernel; the decode step has it inside attention (attend_rows.cu).
/// Mapping:  a group of `lanes` lanes per head of a row, 8 elements each: the heads of q, then those of k and of v.
/// Bound:    memory; every value is read twice and written once. Meaning: model/rope.cc; codes and scales by format/scale_rule.h.

#include "kernels/cuda/decoder/place_head.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128;

template <CacheKind kKind>
__global__ void __launch_bounds__(kThreads) place_heads(const PlaceHeadsProblem p, int lanes) {
  begin_after_earlier_kernels();
  const HeadsShape& shape = p.shape;
  const int all = shape.heads + 2 * shape.kv_heads, pitch = shape.pitch();
  const std::int64_t tasks = std::int64_t{shape.rows} * all, wanted = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const std::int64_t task = wanted < tasks ? wanted : tasks - 1;  // whole warps go on together
  const int row = static_cast<int>(task / all), head = static_cast<int>(task % all), element = static_cast<int>(threadIdx.x) % lanes * 8;
  const bool is_q = head < shape.heads, is_v = head >= shape.heads + shape.kv_heads, writes = wanted < tasks && element < pitch;
  float x[8];
  place_head(p, row, head, is_v ? nullptr : (is_q ? p.q_norm : p.k_norm), p.q_norm != nullptr, !is_v, element, lanes, x);
  if (is_q && writes) {
    const std::int64_t to = (std::int64_t{row} * shape.heads + head) * pitch + element;
    store_four(p.q, p.type, to, {x[0], x[1], x[2], x[3]});
    store_four(p.q, p.type, to + 4, {x[4], x[5], x[6], x[7]});
  }
  const int kv = is_q ? 0 : head - shape.heads - (is_v ? shape.kv_heads : 0);
  const CacheView cache = shape.caches[shape.sequences[row]];
  round_to_cache<kKind>(cache, cache.row(shape.layer, is_v ? 1 : 0, shape.kv_heads, kv, shape.positions[row]), pitch, element, lanes,
                        writes && !is_q, x);
}

}  // namespace

int launch_place_heads(const PlaceHeadsProblem& problem, Stream stream) {
  const HeadsShape& shape = problem.shape;
  const int lanes = lanes_of(shape);
  const std::int64_t tasks = std::int64_t{shape.rows} * (shape.heads + 2 * shape.kv_heads),
                     blocks = (tasks * lanes + kThreads - 1) / kThreads;
  const auto run = [&](auto kernel) { return launch_chained(kernel, blocks, kThreads, 0, 1, stream, problem, lanes); };
  switch (shape.kind) {
    case CacheKind::kFp32: return run(place_heads<CacheKind::kFp32>);
    case CacheKind::kFp16: return run(place_heads<CacheKind::kFp16>);
    case CacheKind::kBf16: return run(place_heads<CacheKind::kBf16>);
    case CacheKind::kE4m3: return run(place_heads<CacheKind::kE4m3>);
    case CacheKind::kInt8: return run(place_heads<CacheKind::kInt8>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace narrow::cuda
