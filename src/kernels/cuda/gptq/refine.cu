/// Learned rounding by coordinate descent: one thread block per row, whose gradient g = E H is in shared memory.
/// Mapping: every warp looks at the same 32 columns, a lane at each; the first that has a better code takes it, all threads change g by its
///          row of H, and the columns after it are looked at again: the steps of one column after the other, without waiting for those
///          that stay.
/// Bound:   reading H, k numbers per code that changes and k per column of a block whose scale moves.   Meaning: methods/refine.cc.

#include <algorithm>

#include "format/scale_rule.h"
#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kPer = 4;
constexpr unsigned kAll = 0xFFFFFFFFu;

/// The sum over the thread block, in a fixed order; every thread gets it.
__device__ inline double sum_of_block(double x, double* warps) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
  for (int i = 0; i < kWarps; ++i) sum += warps[i];
  return sum;
}

/// One row of the weight.
struct Row {
  const RefineProblem& p;
  std::int64_t row, k;
  std::int64_t tile;  ///< columns that share a scale
  float* g;           ///< [k], shared
  float* unit;        ///< [k], what a block's values are multiples of
  double* warps;      ///< [kWarps], shared
  float outer;

  __device__ std::int64_t cell(std::int64_t block) const { return p.weight.grid.grid_row(row) * p.weight.grid.cols + block; }
  __device__ float scale(std::int64_t block) const {
    const CodesInProgress& q = p.weight;
    return q.scheme.has_scales() ? effective_scale(q.scheme, load_scale_code(q.scales, q.scheme.scale, cell(block)), outer) : 1.0f;
  }
  __device__ std::int32_t zero(std::int64_t block) const { return p.weight.scheme.asymmetric ? p.weight.zero_points[cell(block)] : 0; }
  __device__ std::uint16_t& code(std::int64_t c) const { return p.weight.codes[row * k + c]; }
  __device__ float value(std::int64_t c, float scale, std::int32_t zero) const {
    return dequantize_element(p.weight.scheme, code(c), scale, zero);
  }

  /// Each code becomes the nearest to q_c + g_c / H_cc. Whether any changed.
  __device__ bool round_codes() const {
    const Scheme& scheme = p.weight.scheme;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool changed = false;
    for (std::int64_t begin = 0; begin < k; begin += 32)
      for (int settled = 0; settled < 32;) {
        const std::int64_t c = begin + lane;
        bool better = false;
        float step = 0.0f;
        std::uint32_t made = 0;
        if (lane >= settled && c < k) {
          const float diagonal = p.h[c * k + c], slope = g[c], s = scale(c / tile);
          const std::int32_t z = zero(c / tile);
          const float now = value(c, s, z);
          made = quantize_element(scheme, now + slope / diagonal, s, z, Rounding::kNearestEven, Overflow::kSaturate, 0);
          step = dequantize_element(scheme, made, s, z) - now;
          better = diagonal > 0.0f && step != 0.0f && step * step * diagonal - 2.0f * step * slope < 0.0f;
        }
        const unsigned wanting = __ballot_sync(kAll, better);
        if (wanting == 0) break;
        const int first = __ffs(static_cast<int>(wanting)) - 1;
        const float change = __shfl_sync(kAll, step, first);
        __syncthreads();  // all have read g and the codes
        if (static_cast<int>(threadIdx.x) == first) code(c) = static_cast<std::uint16_t>(made);
        const float* h = p.h + (begin + first) * k;
        for (std::int64_t j = threadIdx.x; j < k; j += kThreads) g[j] -= change * h[j];
        __syncthreads();
        changed = true;
        settled = first + 1;
      }
    return changed;
  }

  /// pull_j = the sum over a block's columns of unit_c H_cj, for kPer values of j.
  __device__ void pull_of(std::int64_t first, std::int64_t last, std::int64_t j, std::int64_t end, float (&pull)[kPer]) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i) pull[i] = 0.0f;
#pragma unroll 4
    for (std::int64_t c = first; c < last; ++c) {
      const float factor = unit[c];
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (j + i * kThreads < end) pull[i] += factor * p.h[c * k + j + i * kThreads];
    }
  }

  /// The block's values move by `steps(slope / curvature)` times unit, where that lowers the loss.
  template <typename Steps>
  __device__ bool move(std::int64_t first, std::int64_t last, const Steps& steps) const {
    double slope = 0.0, curvature = 0.0;
    for (std::int64_t j = first + threadIdx.x; j < last; j += kPer * kThreads) {
      float pull[kPer];
      pull_of(first, last, j, last, pull);
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const std::int64_t c = j + i * kThreads;
        if (c >= last) break;
        slope += static_cast<double>(unit[c]) * static_cast<double>(g[c]);
        curvature += static_cast<double>(unit[c]) * static_cast<double>(pull[i]);
      }
    }
    slope = sum_of_block(slope, warps);
    curvature = sum_of_block(curvature, warps);
    const double step = curvature > 0.0 ? steps(slope / curvature) : 0.0;
    if (step == 0.0 || step * step * curvature - 2.0 * step * slope >= 0.0) return false;
    for (std::int64_t j = threadIdx.x; j < k; j += kPer * kThreads) {
      float pull[kPer];
      pull_of(first, last, j, k, pull);
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (j + i * kThreads < k) g[j + i * kThreads] -= static_cast<float>(step) * pull[i];
    }
    return true;
  }

  /// Each block's scale, and its zero point, given all codes. Whether any changed.
  __device__ bool fit_scales() const {
    const CodesInProgress& q = p.weight;
    bool changed = false;
    for (std::int64_t b = 0; b < q.grid.cols; ++b) {
      const std::int64_t first = b * tile, last = min(k, first + tile);
      const float s = scale(b);
      if (s <= 0.0f) continue;
      const std::int32_t z = zero(b);
      __syncthreads();  // all have read what is there, and unit of the block before
      for (std::int64_t c = first + threadIdx.x; c < last; c += kThreads) unit[c] = value(c, s, z) / s;
      __syncthreads();
      ScaleCode stored;
      if (move(first, last, [&](double best) {
            const float wanted = static_cast<float>((static_cast<double>(s) + best) / static_cast<double>(outer));
            if (!(wanted > 0.0f)) return 0.0;
            stored = store_scale(q.scheme.scale, wanted, outer);
            return static_cast<double>(stored.effective) - static_cast<double>(s);
          })) {
        if (threadIdx.x == 0) store_scale_code(q.scales, q.scheme.scale, cell(b), stored.code);
        changed = true;
      }
      __syncthreads();
      if (!q.scheme.asymmetric) continue;
      const float moved = scale(b);
      for (std::int64_t c = first + threadIdx.x; c < last; c += kThreads) unit[c] = moved;
      __syncthreads();
      const std::int32_t highest = static_cast<std::int32_t>(q.scheme.element.max_code());
      std::int32_t shift = 0;
      if (move(first, last, [&](double best) {
            shift = static_cast<std::int32_t>(lround(fmin(fmax(best, -1.0), 1.0)));
            if (z - shift < 0 || z - shift > highest) shift = 0;
            return static_cast<double>(shift);
          })) {
        if (threadIdx.x == 0) q.zero_points[cell(b)] = static_cast<std::uint8_t>(z - shift);
        changed = true;
      }
      __syncthreads();
    }
    return changed;
  }
};

__global__ void __launch_bounds__(kThreads) refine_rows(const RefineProblem p, bool fits) {
  extern __shared__ float gradient[];
  __shared__ double warps[kWarps];
  const CodesInProgress& q = p.weight;
  const std::int64_t tile = !q.scheme.has_scales() || q.grid.whole_tensor ? q.k : q.grid.tile_cols;
  const float outer = q.scheme.has_outer_scale ? *q.outer_scale : 1.0f;
  for (std::int64_t row = blockIdx.x; row < q.n; row += gridDim.x) {
    __syncthreads();
    for (std::int64_t c = threadIdx.x; c < q.k; c += kThreads) gradient[c] = p.gradient[row * q.k + c];
    __syncthreads();
    const Row one{p, row, q.k, tile, gradient, p.scratch + blockIdx.x * q.k, warps, outer};
    for (int sweep = 0; sweep < p.sweeps; ++sweep) {
      bool changed = one.round_codes();
      if (fits) changed |= one.fit_scales();
      if (!changed) break;
    }
    if (fits) one.round_codes();
  }
}

__global__ void __launch_bounds__(kThreads) turned_errors(const CodesInProgress q, const float* w, float* errors) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, c = index / q.n, row = index % q.n;
  if (c >= q.k) return;
  float scale = 1.0f;
  std::int32_t zero = 0;
  if (q.scheme.has_scales()) {
    const std::int64_t cell = q.grid.grid_row(row) * q.grid.cols + q.grid.grid_col(c);
    scale = effective_scale(q.scheme, load_scale_code(q.scales, q.scheme.scale, cell), q.scheme.has_outer_scale ? *q.outer_scale : 1.0f);
    if (q.scheme.asymmetric) zero = q.zero_points[cell];
  }
  errors[index] = dequantize_element(q.scheme, q.codes[row * q.k + c], scale, zero) - w[row * q.k + c];
}

/// Thread blocks: a few per multiprocessor, which share its memory.
std::int64_t refine_blocks(std::int64_t n) { return std::min<std::int64_t>(n, 8 * multiprocessors()); }

}  // namespace

std::size_t refine_scratch(std::int64_t n, std::int64_t k) { return static_cast<std::size_t>(refine_blocks(n) * k) * sizeof(float); }

int launch_refine(const RefineProblem& p, Stream stream) {
  const std::int64_t blocks = refine_blocks(p.weight.n);
  if (blocks == 0) return cudaSuccess;
  const int shared = static_cast<int>(p.weight.k) * static_cast<int>(sizeof(float));
  if (const int error = cudaFuncSetAttribute(refine_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, shared); error != 0) return error;
  const bool fits = p.weight.scheme.has_scales() && !p.weight.grid.whole_tensor && p.weight.grid.tile_rows == 1;
  refine_rows<<<static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(shared), stream>>>(p, fits);
  return cudaGetLastError();
}

int launch_turned_errors(const CodesInProgress& weight, const float* w, float* errors, Stream stream) {
  return launch_kernel(turned_errors, (weight.n * weight.k + kThreads - 1) / kThreads, kThreads, stream, weight, w, errors);
}

}  // namespace narrow::cuda
