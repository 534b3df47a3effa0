/// The next token from logits, on the device.
/// Greedy:   a cluster of eight thread blocks per row; the first of the largest.
/// Drawn:    a thread block per row. Tokens are ordered by their logits (equal ones by their number), and every limit (top_k, top_p, the
///           drawn number) is a place in that order at which a sum reaches a value. The place is found eight bits of the logit at a time,
///           by a histogram in shared memory. Sums are fixed-point numbers, so that their order does not matter.
/// Bound:    memory: one pass over the logits, or at most thirteen, out of the second-level cache.

#include <cooperative_groups.h>

#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 512, kDrawThreads = 1024, kBlocks = 8, kWarps = kThreads / 32, kBins = 256;

/// Larger logits have larger keys, both zeros the same; a NaN counts as the smallest.
__device__ inline std::uint32_t key_of(float x) {
  if (isnan(x)) return 0;
  if (x == 0.0f) return 0x80000000u;
  const std::uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// Key first, then the lower index.
__device__ inline unsigned long long entry_of(float x, std::int64_t i) {
  return static_cast<unsigned long long>(key_of(x)) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(i));
}

__device__ void finish(const SampleProblem& p, int row, std::int32_t token) {
  p.tokens[row] = token;
  if (p.positions != nullptr) ++p.positions[row];
  const std::int32_t step = p.step[row]++;
  if (p.history != nullptr && step < p.steps) p.history[std::int64_t{step} * p.rows + row] = token;
}

__global__ void __launch_bounds__(kThreads) take_likeliest(const SampleProblem p) {
  __shared__ unsigned long long best[kWarps], block_best;
  begin_after_earlier_kernels();
  const int row = static_cast<int>(blockIdx.x) / kBlocks, rank = static_cast<int>(blockIdx.x) % kBlocks;
  const float* logits = p.logits + row * p.vocabulary;
  unsigned long long mine = 0;
  for (std::int64_t i = rank * kThreads + static_cast<int>(threadIdx.x); i < p.vocabulary; i += kBlocks * kThreads)
    mine = max(mine, entry_of(logits[i], i));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) mine = max(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, offset));
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) mine = max(mine, best[w]);
    block_best = mine;
  }
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (rank == 0 && threadIdx.x == 0) {
    for (int b = 1; b < kBlocks; ++b) mine = max(mine, *cluster.map_shared_rank(&block_best, b));
    finish(p, row, static_cast<std::int32_t>(0xFFFFFFFFu - static_cast<std::uint32_t>(mine)));
  }
  cluster.sync();
}

/// Uniform in [0, 1) from (seed, step), as narrow::sample has it.
__device__ double uniform(std::uint64_t seed, std::uint64_t step) {
  const auto mix = [](std::uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  };
  return static_cast<double>(mix(mix(seed) + step) >> 11) * 0x1p-53;
}

/// exp((x - top) / temperature) in units of 2^-40: 2^17 tokens of weight 1 and more stay below 2^63.
__device__ inline unsigned long long weight_of(float x, float top, double temperature) {
  if (isnan(x)) return 0;
  return static_cast<unsigned long long>(exp((static_cast<double>(x) - static_cast<double>(top)) / temperature) * 0x1p40);
}

/// Tokens before a place in the order: those of larger keys, and the first `ties` of its key.
struct Place {
  std::uint32_t key = 0;
  unsigned long long ties = ~0ull;
  unsigned long long before = 0;  ///< what the larger keys sum up to
};

struct Shared {
  unsigned long long bins[kBins], counts[kBins];
  unsigned long long before;
  std::uint32_t key, found;
  unsigned long long total;
  unsigned warp_counts[kDrawThreads / 32];
  float top[kDrawThreads / 32];
};

/// The first place at which the sum of measure(key, x) over the order reaches `goal` (>= 1), or the end.
template <typename Measure>
__device__ Place find_place(const SampleProblem& p, const float* logits, Shared& shared, unsigned long long goal, const Measure& measure) {
  Place place{0, 0, 0};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kDrawThreads) shared.bins[i] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDrawThreads) {
      const std::uint32_t key = key_of(logits[i]);
      if (shift == 24 || (key >> (shift + 8)) == (place.key >> (shift + 8)))
        if (const unsigned long long m = measure(key, logits[i]); m != 0) atomicAdd(&shared.bins[key >> shift & 0xFFu], m);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long before = place.before;
      int bin = kBins - 1;
      while (bin > 0 && before + shared.bins[bin] < goal) before += shared.bins[bin--];
      shared.before = before;
      shared.key = place.key | static_cast<std::uint32_t>(bin) << shift;
    }
    __syncthreads();
    place.key = shared.key;
    place.before = shared.before;
    __syncthreads();
  }
  return place;
}

/// The index of the n-th token (from 0) of a key; all tokens of a key are alike.
__device__ std::int64_t token_of(const SampleProblem& p, const float* logits, Shared& shared, std::uint32_t key, unsigned long long n) {
  if (threadIdx.x == 0) shared.found = 0xFFFFFFFFu;
  unsigned long long seen = 0;
  for (std::int64_t base = 0; base < p.vocabulary; base += kDrawThreads) {
    const std::int64_t i = base + threadIdx.x;
    const bool match = i < p.vocabulary && key_of(logits[i]) == key;
    const unsigned ballot = __ballot_sync(0xFFFFFFFFu, match);
    if (threadIdx.x % 32 == 0) shared.warp_counts[threadIdx.x / 32] = static_cast<unsigned>(__popc(ballot));
    __syncthreads();
    unsigned long long before = seen;
    for (unsigned w = 0; w < threadIdx.x / 32; ++w) before += shared.warp_counts[w];
    before += static_cast<unsigned>(__popc(ballot & ((1u << threadIdx.x % 32) - 1u)));
    if (match && before == n) shared.found = static_cast<std::uint32_t>(i);
    for (int w = 0; w < kDrawThreads / 32; ++w) seen += shared.warp_counts[w];
    __syncthreads();
    if (shared.found != 0xFFFFFFFFu) break;
  }
  return shared.found;
}

__global__ void __launch_bounds__(kDrawThreads) draw(const SampleProblem p) {
  __shared__ Shared shared;
  begin_after_earlier_kernels();
  const int row = static_cast<int>(blockIdx.x);
  const float* logits = p.logits + row * p.vocabulary;
  float top = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDrawThreads) top = fmaxf(top, logits[i]);
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) shared.top[threadIdx.x / 32] = top;
  __syncthreads();
  top = warp_max(shared.top[threadIdx.x % 32]);

  // The last key of the top_k, and how many tokens of that key are among them.
  Place kept{0, ~0ull, 0};
  if (p.top_k > 0 && p.top_k < p.vocabulary) {
    kept = find_place(p, logits, shared, static_cast<unsigned long long>(p.top_k), [](std::uint32_t, float) { return 1ull; });
    kept.ties = static_cast<unsigned long long>(p.top_k) - kept.before;
  }
  const float kept_value = kept.key == 0 ? 0.0f : __uint_as_float((kept.key >> 31) != 0 ? kept.key & 0x7FFFFFFFu : ~kept.key);
  const auto weigh = [&](std::uint32_t key, float x) { return key > kept.key || kept.key == 0 ? weight_of(x, top, p.temperature) : 0ull; };
  if (threadIdx.x == 0) shared.total = 0;
  __syncthreads();
  unsigned long long sum = 0;
  for (std::int64_t i = threadIdx.x; i < p.vocabulary; i += kDrawThreads) sum += weigh(key_of(logits[i]), logits[i]);
  atomicAdd(&shared.total, sum);
  __syncthreads();
  const unsigned long long tie_weight = kept.key == 0 ? 0 : weight_of(kept_value, top, p.temperature);
  const unsigned long long above = shared.total, total = above + (kept.key == 0 ? 0 : kept.ties * tie_weight);

  // The sum of the fewest tokens that reach top_p, then the drawn one's place below it.
  unsigned long long reached = total;
  const auto place_of = [&](unsigned long long goal, std::uint32_t& key, unsigned long long& index, unsigned long long& weight) {
    if (goal > above && kept.key != 0) {
      key = kept.key;
      weight = max(tie_weight, 1ull);
      index = min((goal - above - 1) / weight, kept.ties - 1);
      return above + (index + 1) * tie_weight;
    }
    const Place place = find_place(p, logits, shared, goal, weigh);
    key = place.key;
    const float value = __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFFu : ~key);
    weight = max(weight_of(value, top, p.temperature), 1ull);
    index = (goal - place.before - 1) / weight;
    return place.before + (index + 1) * weight;
  };
  std::uint32_t key = 0;
  unsigned long long index = 0, weight = 0;
  if (p.top_p < 1.0) {
    const unsigned long long goal = static_cast<unsigned long long>(p.top_p * static_cast<double>(total));
    reached = place_of(max(goal, 1ull), key, index, weight);
  }
  const double drawn = uniform(p.seed, static_cast<std::uint64_t>(p.step[row])) * static_cast<double>(reached);
  place_of(min(static_cast<unsigned long long>(drawn) + 1, max(reached, 1ull)), key, index, weight);
  const std::int64_t token = token_of(p, logits, shared, key, index);
  if (threadIdx.x == 0) finish(p, row, static_cast<std::int32_t>(token));
}

}  // namespace

int launch_sample(const SampleProblem& problem, Stream stream) {
  if (problem.temperature == 0.0 || problem.top_k == 1)
    return launch_chained(take_likeliest, std::int64_t{problem.rows} * kBlocks, kThreads, 0, kBlocks, stream, problem);
  return launch_chained(draw, problem.rows, kDrawThreads, 0, 1, stream, problem);
}

}  // namespace narrow::cuda
