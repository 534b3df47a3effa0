/// Bound: memory for many rows; with few of them the time from launch to end.

#include "kernels/cuda/decoder/experts.h"

#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xFFFFFFFFu;

__device__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

/// Every warp multiplies kRows rows with one expert's weights.
template <int kRows>
__global__ void __launch_bounds__(kThreads) route_logits(const RouteProblem p) {
  const int groups = (p.experts + kWarps - 1) / kWarps, lane = threadIdx.x % 32;
  const int expert = blockIdx.x % groups * kWarps + threadIdx.x / 32;
  const std::int64_t first = std::int64_t{blockIdx.x / groups} * kRows, last = p.rows - 1;
  begin_after_earlier_kernels();
  if (expert >= p.experts) return;
  const float4* w = reinterpret_cast<const float4*>(p.w + expert * p.cols);
  float sums[kRows] = {};
#pragma unroll 4
  for (std::int64_t quad = lane; quad < p.cols / 4; quad += 32) {
    const float4 factor = w[quad];
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      sums[row] += dot(factor, reinterpret_cast<const float4*>(p.x + min(first + row, last) * p.cols)[quad]);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    for (int apart = 16; apart > 0; apart /= 2) sums[row] += __shfl_xor_sync(kAll, sums[row], apart);
    if (lane == 0 && first + row <= last) p.logits[(first + row) * p.experts + expert] = sums[row];
  }
}

/// One warp per row.
__global__ void __launch_bounds__(kThreads) choose_experts(const RouteProblem p) {
  __shared__ float logits[kWarps][kMostExperts];
  begin_after_earlier_kernels();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp;
  if (row >= p.rows) return;
  float* mine = logits[warp];
  for (int expert = lane; expert < p.experts; expert += 32) mine[expert] = p.logits[row * p.experts + expert];
  __syncwarp();
  float largest = 0.0f, all = 0.0f, chosen = 0.0f;
  for (int choice = 0; choice < p.per_token; ++choice) {
    float best = -INFINITY;
    int who = kMostExperts;
    for (int expert = lane; expert < p.experts; expert += 32)
      if (mine[expert] > best || who == kMostExperts) best = mine[expert], who = expert;
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(kAll, best, apart);
      const int their = __shfl_xor_sync(kAll, who, apart);
      if (other > best || (other == best && their < who)) best = other, who = their;
    }
    if (choice == 0) {
      largest = best;
      for (int expert = lane; expert < p.experts; expert += 32) all += __expf(mine[expert] - largest);
      for (int apart = 16; apart > 0; apart /= 2) all += __shfl_xor_sync(kAll, all, apart);
    }
    const float share = __expf(best - largest);
    chosen += share;
    if (lane == 0) {
      p.chosen[row * p.per_token + choice] = who;
      p.shares[row * p.per_token + choice] = share;
      mine[who] = -INFINITY;
    }
    __syncwarp();
  }
  const float whole = p.shares_sum_to_one ? chosen : all;
  for (int choice = lane; choice < p.per_token; choice += 32) p.shares[row * p.per_token + choice] /= whole;
}

/// One thread block per expert counts the choices of the experts before it, then places its own.
__global__ void __launch_bounds__(kThreads) order_routes(const RouteOrder p) {
  __shared__ int counts[kWarps];
  begin_after_earlier_kernels();
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int before = 0;
  for (std::int64_t i = threadIdx.x; i < p.choices; i += kThreads) before += p.chosen[i] < expert ? 1 : 0;
  for (int apart = 16; apart > 0; apart /= 2) before += __shfl_xor_sync(kAll, before, apart);
  if (lane == 0) counts[warp] = before;
  __syncthreads();
  int place = 0;
  for (int i = 0; i < kWarps; ++i) place += counts[i];
  if (threadIdx.x == 0) p.offsets[expert] = place;
  if (threadIdx.x == 0 && expert + 1 == p.experts) p.offsets[p.experts] = static_cast<std::int32_t>(p.choices);
  for (std::int64_t base = 0; base < p.choices; base += kThreads) {
    const std::int64_t i = base + threadIdx.x;
    const bool mine = i < p.choices && p.chosen[i] == expert;
    const unsigned votes = __ballot_sync(kAll, mine);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int at = place + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += counts[w];
      place += counts[w];
    }
    if (mine) {
      p.row_of[at] = static_cast<std::int32_t>(i / p.per_token);
      p.place_of[i] = at;
    }
  }
}

__global__ void __launch_bounds__(kThreads) gather_codes(const GatherCodes p) {
  begin_after_earlier_kernels();
  const std::int64_t to = blockIdx.x;
  if (to >= p.rows) {  // the padding of transposed scales
    for (int block = threadIdx.x; block < p.scale_blocks; block += kThreads) p.new_scales[block * p.new_scale_rows + to] = 0.0f;
    return;
  }
  const std::int64_t from = p.row_of[to];
  for (std::int64_t i = threadIdx.x; i < p.cols / 16; i += kThreads)
    reinterpret_cast<uint4*>(p.new_codes + to * p.cols)[i] = reinterpret_cast<const uint4*>(p.codes + from * p.cols)[i];
  for (int block = threadIdx.x; block < p.scale_blocks; block += kThreads)
    p.new_scales[block * p.new_scale_rows + to] = p.scales[block * p.scale_rows + from];
}

/// A thread per four columns; a thread block has kThreads of them, so that one row keeps several busy.
__global__ void __launch_bounds__(kThreads) combine_experts(const CombineExperts p, int blocks) {
  begin_after_earlier_kernels();
  const std::int64_t row = blockIdx.x / blocks, quad = std::int64_t{blockIdx.x % blocks} * kThreads + threadIdx.x;
  if (quad >= p.cols / 4) return;
  float4* to = reinterpret_cast<float4*>(p.stream + row * p.cols) + quad;
  float4 sum = *to;
#pragma unroll 4
  for (int choice = 0; choice < p.per_token; ++choice) {
    const std::int64_t i = row * p.per_token + choice;
    const float share = p.shares[i];
    const float4 y = load_four(p.y, p.y_type, p.place_of[i] * p.cols + quad * 4);
    sum = {sum.x + share * y.x, sum.y + share * y.y, sum.z + share * y.z, sum.w + share * y.w};
  }
  *to = sum;
}

}  // namespace

int launch_route(const RouteProblem& problem, Stream stream) {
  constexpr int kManyRows = 8;
  const std::int64_t groups = (problem.experts + kWarps - 1) / kWarps;
  const bool many = problem.rows >= kManyRows;
  const int status =
      launch_chained(many ? route_logits<kManyRows> : route_logits<1>,
                     groups * (many ? (problem.rows + kManyRows - 1) / kManyRows : problem.rows), kThreads, 0, 1, stream, problem);
  return status != cudaSuccess ? status
                               : launch_chained(choose_experts, (problem.rows + kWarps - 1) / kWarps, kThreads, 0, 1, stream, problem);
}

int launch_order_routes(const RouteOrder& order, Stream stream) {
  return launch_chained(order_routes, order.experts, kThreads, 0, 1, stream, order);
}

int launch_gather_codes(const GatherCodes& gather, Stream stream) {
  const std::int64_t padded = gather.scale_blocks > 1 ? gather.new_scale_rows : gather.rows;
  return launch_chained(gather_codes, padded, kThreads, 0, 1, stream, gather);
}

int launch_combine_experts(const CombineExperts& combine, Stream stream) {
  const int blocks = static_cast<int>((combine.cols / 4 + kThreads - 1) / kThreads);
  return launch_chained(combine_experts, combine.rows * blocks, kThreads, 0, 1, stream, combine, blocks);
}

}  // namespace narrow::cuda
