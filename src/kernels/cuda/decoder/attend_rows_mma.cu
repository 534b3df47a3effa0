/// Attention of single rows on tensor cores: heads of 64 and 128, keys and values in 8 or 16 bits.
/// Mapping:  a cluster per row, key head and up to eight of its query heads; its thread blocks take equal runs of keys, and their warps
///           every fourth chunk of 16 keys, with a running softmax of their own (mma.m16n8k16, queries as the 16 rows of A).
///           Keys and values go from memory to the registers of a product: a lane's 16 bytes of a key are elements of k that A has in the
///           same order, its 16 bytes of a value are columns of n, and pairs of values are laid together by byte permutations.
/// Rounding: queries and weights are two 16-bit floats each, x = high + low, in rows g and g + 8 of A: what single fp16 rounding would lose
///           stays, and the sum of both rows is the product. Values beyond fp16's range saturate. With scales the largest of score +
///           log2(scale of the value) is subtracted, so that weight * scale is at most 1.
/// Bound:    the bytes of keys and values. Meaning: kernels/reference/attention.cc.

#include "kernels/cuda/decoder/attend_rows.cuh"
#include "kernels/cuda/decoder/place_head.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kHeads = 8, kChunk = 16;
constexpr unsigned kAll = 0xFFFFFFFFu;
/// Values of smaller scales than this weigh as if theirs were this one, so that no weight overflows.
constexpr float kLeastScale = 0x1p-60f;

template <CacheKind kKind>
__device__ void mma(float (&d)[4], uint4 a, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kKind == CacheKind::kBf16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// x and y as two floats of 16 bits each: the pair of high parts, and that of what they leave.
template <CacheKind kKind>
__device__ uint2 two_parts(float x, float y) {
  if constexpr (kKind == CacheKind::kBf16) {
    const __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
    const __nv_bfloat162 low = __floats2bfloat162_rn(x - __low2float(high), y - __high2float(high));
    return {reinterpret_cast<const std::uint32_t&>(high), reinterpret_cast<const std::uint32_t&>(low)};
  } else {
    const __half2 high = __floats2half2_rn(saturated_f16(x), saturated_f16(y));
    const __half2 low = __floats2half2_rn(saturated_f16(x - __low2float(high)), saturated_f16(y - __high2float(high)));
    return {reinterpret_cast<const std::uint32_t&>(high), reinterpret_cast<const std::uint32_t&>(low)};
  }
}

/// Two codes of a byte, the first in the lowest, as a pair of fp16.
template <CacheKind kKind>
__device__ std::uint32_t halves_of(std::uint32_t codes) {
  if constexpr (kKind == CacheKind::kE4m3) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
    return halves;
  } else {  // the code + 128 below the exponent of 1024
    const std::uint32_t laid = __byte_perm(codes ^ 0x8080u, 0x64646464u, 0x4140);
    const __half2 value = __hsub2(reinterpret_cast<const __half2&>(laid), __float2half2_rn(1152.0f));
    return reinterpret_cast<const std::uint32_t&>(value);
  }
}

template <CacheKind kKind, int kDim>
class Warp {
 public:
  static constexpr int kBytes = bytes_of(kKind), kSteps = kDim / 16, kTiles = kDim / 8;
  static constexpr int kKeyLoads = kDim * kBytes / 64, kValueBytes = kDim * kBytes / 8;  ///< of a lane: 16 bytes each; of one value
  static constexpr int kValueWords = kValueBytes / 4;

  __device__ Warp(const CacheView& cache, const AttendTask& task)
      : cache_(cache),
        task_(task),
        lane_(static_cast<int>(threadIdx.x) % 32),
        next_(task.begin + static_cast<int>(threadIdx.x) / 32 * kChunk) {}

  /// The elements of k that a lane has in step i: four from here on.
  __device__ static int first_element(int step, int lane) {
    constexpr int kPerLoad = 16 / kBytes / 4;  // steps
    return step / kPerLoad * (64 / kBytes) + lane % 4 * (16 / kBytes) + step % kPerLoad * 4;
  }

  __device__ void load_first_keys() {
    if (next_ < task_.stop) load_keys(next_);
  }
  __device__ void load_first_values() {
    if (next_ < task_.stop) load_values(next_);
  }

  /// All chunks of the warp; queries: A of every step and lane.
  __device__ void run(const uint4* queries) {
    for (int base = next_; base < task_.stop; base += kWarps * kChunk) {
      float score[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint4 a = queries[step * 32 + lane_];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint2 b = key_fragment(n, step);
          mma<kKind>(score[n], a, b.x, b.y);
        }
      }
      float s[4], key_scale[4], value_scale[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) key_scale[u] = key_scale_[u], value_scale[u] = value_scale_[u];
      const bool more = base + kWarps * kChunk < task_.stop;
      if (more) load_keys(base + kWarps * kChunk);
      float largest = largest_;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        s[u] = score[u / 2][u % 2] + score[u / 2][u % 2 + 2];
        if constexpr (has_scales(kKind)) s[u] *= key_scale[u];
        if (key_of(base, u) >= task_.stop) s[u] = -INFINITY;
        largest = fmaxf(largest, has_scales(kKind) ? s[u] + __log2f(fmaxf(value_scale[u], kLeastScale)) : s[u]);
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      if (__any_sync(kAll, largest > largest_)) {
        const float factor = exp2f(largest_ - largest);
        total_ *= factor;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums_[tile][i] *= factor;
        largest_ = largest;
      }
      float weight[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        weight[u] = exp2f(s[u] - largest_);
        total_ += weight[u];
        if constexpr (has_scales(kKind)) weight[u] *= value_scale[u];
      }
      const uint2 first = two_parts<kKind>(weight[0], weight[1]), second = two_parts<kKind>(weight[2], weight[3]);
      const uint4 a{first.x, first.y, second.x, second.y};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) mma<kKind>(sums_[tile], a, value_fragment(0, tile), value_fragment(2, tile));
      if (more) load_values(base + kWarps * kChunk);
    }
  }

  /// The softmax of every query, as a part of the thread block's.
  template <typename Parts>
  __device__ void leave(Parts& parts, int part, int live) {
    total_ += __shfl_xor_sync(kAll, total_, 1);
    total_ += __shfl_xor_sync(kAll, total_, 2);
    const int h = lane_ / 4;
    if (h >= live) return;
    if (lane_ % 4 == 0) parts.largest[part][h] = largest_, parts.total[part][h] = total_;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) parts.values[part][h][column_element(tile, lane_ % 4 * 2 + i)] = sums_[tile][i] + sums_[tile][i + 2];
  }

 private:
  /// The key of a lane's u-th score and value.
  __device__ int key_of(int base, int u) const { return base + u / 2 * 8 + lane_ % 4 * 2 + u % 2; }
  /// The element of a value that column `column` of tile `tile` has.
  __device__ static int column_element(int tile, int column) {
    constexpr int kPerLoad = (kValueBytes < 16 ? kValueBytes : 16) / kBytes;
    return tile / kPerLoad * (8 * kPerLoad) + column * kPerLoad + tile % kPerLoad;
  }

  __device__ void load_keys(int base) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int key = min(base + n * 8 + lane_ / 4, task_.stop - 1);
      const std::byte* from = cache_.codes + (task_.keys + key) * (kDim * kBytes) + lane_ % 4 * 16;
#pragma unroll
      for (int load = 0; load < kKeyLoads; ++load) keys_[n][load] = *reinterpret_cast<const uint4*>(from + load * 64);
    }
    if constexpr (has_scales(kKind)) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int key = min(key_of(base, u), task_.stop - 1);
        key_scale_[u] = cache_.scales[task_.keys + key];
        value_scale_[u] = cache_.scales[task_.values + key];
      }
    }
  }
  __device__ void load_values(int base) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const std::byte* from = cache_.codes + (task_.values + min(key_of(base, u), task_.stop - 1)) * (kDim * kBytes);
      if constexpr (kValueBytes < 16) {
        const uint2 bits = *reinterpret_cast<const uint2*>(from + lane_ / 4 * 8);
        values_[u][0] = bits.x, values_[u][1] = bits.y;
      } else {
#pragma unroll
        for (int load = 0; load < kValueBytes / 16; ++load) {
          const uint4 bits = *reinterpret_cast<const uint4*>(from + load * 128 + lane_ / 4 * 16);
          values_[u][load * 4] = bits.x, values_[u][load * 4 + 1] = bits.y;
          values_[u][load * 4 + 2] = bits.z, values_[u][load * 4 + 3] = bits.w;
        }
      }
    }
  }

  __device__ uint2 key_fragment(int n, int step) const {
    if constexpr (kBytes == 2) {
      const uint4& load = keys_[n][step / 2];
      return step % 2 == 0 ? uint2{load.x, load.y} : uint2{load.z, load.w};
    } else {
      const uint4& load = keys_[n][step / 4];
      const std::uint32_t codes = step % 4 == 0 ? load.x : (step % 4 == 1 ? load.y : (step % 4 == 2 ? load.z : load.w));
      return {halves_of<kKind>(codes & 0xFFFFu), halves_of<kKind>(codes >> 16)};
    }
  }
  /// The column of a tile in values u and u + 1.
  __device__ std::uint32_t value_fragment(int u, int tile) const {
    if constexpr (kBytes == 2)
      return __byte_perm(values_[u][tile / 2], values_[u + 1][tile / 2], tile % 2 == 0 ? 0x5410 : 0x7632);
    else
      return halves_of<kKind>(__byte_perm(values_[u][tile / 4], values_[u + 1][tile / 4], tile % 4 | (tile % 4 + 4) << 4) & 0xFFFFu);
  }

  const CacheView& cache_;
  const AttendTask& task_;
  int lane_, next_;
  uint4 keys_[2][kKeyLoads];
  std::uint32_t values_[4][kValueWords];
  float key_scale_[4], value_scale_[4];
  float largest_ = kLowest, total_ = 0.0f;
  float sums_[kTiles][4] = {};
};

template <CacheKind kKind, int kDim>
__global__ void __launch_bounds__(kThreads, 2) attend_rows_mma(const AttendProblem p, int splits) {
  using Own = Warp<kKind, kDim>;
  __shared__ AttendParts<kWarps + 1, kHeads, kDim> parts;  // the last one: the row's own key
  __shared__ float turned[kHeads][kDim];
  __shared__ uint4 queries[Own::kSteps * 32];
  const HeadsShape& shape = p.shape;
  AttendTask task(p, kHeads, splits);
  constexpr int kLanes = kDim / 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, element = lane % kLanes * 8;
  begin_after_earlier_kernels();
  const CacheView cache = task.find_keys(p, splits);
  Own own(cache, task);
  own.load_first_keys();

  for (int h = thread / kLanes; h < kHeads; h += kThreads / kLanes) {  // all lanes of a warp alike
    float q[8];
    const int head = task.head + min(h, task.live - 1);
    if (p.places) {
      place_head(p.place, task.row, head, p.place.q_norm, p.place.q_norm != nullptr, true, element, kLanes, q);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i] = load_value(p.q, p.q_type, (std::int64_t{task.row} * shape.heads + head) * kDim + element + i);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) turned[h][element + i] = q[i] * (p.scale * kLog2e);
  }
  own.load_first_values();
  __syncthreads();
  for (int i = thread; i < Own::kSteps * 32; i += kThreads) {
    const float* q = turned[i % 32 / 4] + Own::first_element(i / 32, i % 32);
    const uint2 first = two_parts<kKind>(q[0], q[1]), second = two_parts<kKind>(q[2], q[3]);
    queries[i] = {first.x, first.y, second.x, second.y};
  }
  __syncthreads();
  const bool counts_own = p.places && task.split == splits - 1;
  if (counts_own && warp == kWarps - 1) {  // the warp with the fewest chunks
    float k[8], v[8];
    place_head(p.place, task.row, shape.heads + task.kv, p.place.k_norm, p.place.k_norm != nullptr, true, element, kLanes, k);
    place_head(p.place, task.row, shape.heads + shape.kv_heads + task.kv, nullptr, false, false, element, kLanes, v);
    const bool writes = task.pass == 0 && lane < kLanes;
    round_to_cache<kKind>(cache, task.keys + task.position, kDim, element, kLanes, writes, k);
    round_to_cache<kKind>(cache, task.values + task.position, kDim, element, kLanes, writes, v);
    for (int h = 0; h < task.live; ++h) {
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) score = fmaf(turned[h][element + i], k[i], score);
      score = group_sum(score, kLanes);
      if (lane >= kLanes) continue;
      if (lane == 0) parts.largest[kWarps][h] = score, parts.total[kWarps][h] = 1.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) parts.values[kWarps][h][element + i] = v[i];
    }
  }
  own.run(queries);
  own.leave(parts, warp, task.live);
  __syncthreads();
  join_and_store<kThreads>(p, parts, kWarps + (counts_own ? 1 : 0), task.row, task.head, task.live, task.split, splits);
}

template <int kDim>
int launch(const AttendProblem& problem, Stream stream) {
  const HeadsShape& shape = problem.shape;
  // One thread block for each of 132 multiprocessors is enough where keys are few, and two are not too many where keys are many.
  constexpr int kEnough = 264, kMostSplits = 8;
  int splits = 1;
  while (splits < kMostSplits && attend_blocks(shape, kHeads, 2 * splits) <= kEnough) splits *= 2;
  const auto run = [&](auto kernel) {
    return launch_chained(kernel, attend_blocks(shape, kHeads, splits), kThreads, 0, splits, stream, problem, splits);
  };
  switch (shape.kind) {
    case CacheKind::kFp16: return run(attend_rows_mma<CacheKind::kFp16, kDim>);
    case CacheKind::kBf16: return run(attend_rows_mma<CacheKind::kBf16, kDim>);
    case CacheKind::kE4m3: return run(attend_rows_mma<CacheKind::kE4m3, kDim>);
    case CacheKind::kInt8: return run(attend_rows_mma<CacheKind::kInt8, kDim>);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

bool takes_attend_rows_mma(const HeadsShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.kind != CacheKind::kFp32;
}

int launch_attend_rows_mma(const AttendProblem& problem, Stream stream) {
  return problem.shape.head_dim == 64 ? launch<64>(problem, stream) : launch<128>(problem, stream);
}

}  // namespace narrow::cuda
