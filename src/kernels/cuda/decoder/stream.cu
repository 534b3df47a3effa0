/// What happens to the stream and to the gate between products: embedding, RMSNorm, SiLU and multiply.
/// Bound: memory; with one row the time from launch to end, which is why norms read their weights before they wait.

#include <algorithm>

#include "format/elementary.h"
#include "format/row_sum.h"
#include "kernels/cuda/decoder/exact.h"
#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kEmbedThreads = 256, kGateThreads = 256, kMostQuads = 4, kMostThreads = 1024, kExactThreads = 256;

__global__ void embed(const std::int32_t* tokens, const void* embedding, DType type, std::int64_t hidden, float* x) {
  begin_after_earlier_kernels();
  const std::int64_t row = blockIdx.x, from = std::int64_t{tokens[row]} * hidden;
  for (std::int64_t i = threadIdx.x; i < hidden; i += blockDim.x) x[row * hidden + i] = load_value(embedding, type, from + i);
}

/// One thread block per row; kInRegisters: rows of at most 4 * kMostQuads values per thread, in fours, are read once.
template <bool kInRegisters>
__global__ void __launch_bounds__(kMostThreads) rms_norm(const NormProblem p) {
  __shared__ float shared[32];
  const std::int64_t row = blockIdx.x, quads = p.cols / 4;
  float4 weights[kMostQuads], values[kMostQuads];
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kMostQuads; ++i)
      if (const std::int64_t quad = threadIdx.x + std::int64_t{i} * blockDim.x; quad < quads)
        weights[i] = reinterpret_cast<const float4*>(p.weight)[quad];
  }
  begin_after_earlier_kernels();
  const std::int64_t first = (p.rows_of == nullptr ? row : p.rows_of[row]) * p.cols;
  const bool adds = p.delta != nullptr, keeps = adds && p.rows_of == nullptr;
  float sum = 0.0f;
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kMostQuads; ++i)
      if (const std::int64_t quad = threadIdx.x + std::int64_t{i} * blockDim.x; quad < quads) {
        float4 v = reinterpret_cast<const float4*>(p.x + first)[quad];
        if (adds) {
          const float4 d = load_four(p.delta, p.delta_type, first + quad * 4);
          v = {v.x + d.x, v.y + d.y, v.z + d.z, v.w + d.w};
        }
        if (keeps) reinterpret_cast<float4*>(p.x + first)[quad] = v;
        values[i] = v;
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      }
  } else {
    for (std::int64_t i = threadIdx.x; i < p.cols; i += blockDim.x) {
      const float v = p.x[first + i] + (adds ? load_value(p.delta, p.delta_type, first + i) : 0.0f);
      if (keeps) p.x[first + i] = v;
      sum += v * v;
    }
  }
  sum = block_sum(sum, shared);
  const float r = 1.0f / sqrtf(sum / static_cast<float>(p.cols) + p.epsilon);
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kMostQuads; ++i)
      if (const std::int64_t quad = threadIdx.x + std::int64_t{i} * blockDim.x; quad < quads) {
        const float4 v = values[i], w = weights[i];
        store_four(p.y, p.y_type, row * p.cols + quad * 4, {v.x * r * w.x, v.y * r * w.y, v.z * r * w.z, v.w * r * w.w});
      }
  } else {
    for (std::int64_t i = threadIdx.x; i < p.cols; i += blockDim.x) {
      const float v = p.x[first + i] + (adds && !keeps ? load_value(p.delta, p.delta_type, first + i) : 0.0f);
      store_value(p.y, p.y_type, row * p.cols + i, v * r * p.weight[i]);
    }
  }
}

/// The same in fp32 with the CPU's bits: sums in the order of format/row_sum.h, a warp per segment. kOnce: every warp has one segment at
/// most, which stays in registers.
template <bool kOnce>
__global__ void __launch_bounds__(kExactThreads) rms_norm_exact(const NormProblem p) {
  constexpr int kPerLane = kSumSegment / kSumLanes;
  __shared__ float shared[kExactThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  float weights[kPerLane], values[kPerLane];
  // of element i of a lane, where it has one
  const auto for_each = [&](std::int64_t begin, const auto& work) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (const std::int64_t at = begin + warp * kSumSegment + i * kSumLanes + lane; at < p.cols) work(i, at);
  };
  if constexpr (kOnce) for_each(0, [&](int i, std::int64_t at) { weights[i] = p.weight[at]; });
  begin_after_earlier_kernels();
  const std::int64_t row = blockIdx.x, first = (p.rows_of == nullptr ? row : p.rows_of[row]) * p.cols;
  const bool adds = p.delta != nullptr, keeps = adds && p.rows_of == nullptr;
  const auto load = [&](int i, std::int64_t at) {
    values[i] = p.x[first + at];
    if (adds) values[i] = __fadd_rn(values[i], load_value(p.delta, p.delta_type, first + at));
  };
  double total = 0.0;
  for (std::int64_t begin = 0; begin < p.cols; begin += std::int64_t{warps} * kSumSegment) {
    float sum = 0.0f;
    for_each(begin, load);
    for_each(begin, [&](int i, std::int64_t) { sum = __fmaf_rn(values[i], values[i], sum); });
#pragma unroll
    for (int half = kSumLanes / 2; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
    if (lane == 0) shared[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warps; ++i) total = __dadd_rn(total, static_cast<double>(shared[i]));
    __syncthreads();
  }
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean_from_sum(total, p.cols), p.epsilon)));
  for (std::int64_t begin = 0; begin < p.cols; begin += std::int64_t{warps} * kSumSegment) {
    if constexpr (!kOnce) {
      for_each(begin, load);
      for_each(begin, [&](int i, std::int64_t at) { weights[i] = p.weight[at]; });
    }
    for_each(begin, [&](int i, std::int64_t at) {
      if (keeps) p.x[first + at] = values[i];
      static_cast<float*>(p.y)[row * p.cols + at] = __fmul_rn(__fmul_rn(values[i], r), weights[i]);
    });
  }
}

/// In fp32 the CPU's bits.
__device__ float gated(float gate, float up, DType type) {
  return type == DType::kF32 ? __fmul_rn(silu_f32(gate), up) : gate / (1.0f + __expf(-gate)) * up;
}

template <bool kFours>
__global__ void gate(const void* gate_up, DType type, std::int64_t rows, std::int64_t cols, void* y, DType y_type) {
  begin_after_earlier_kernels();
  constexpr int kStep = kFours ? 4 : 1;
  const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kStep;
  if (i >= rows * cols) return;
  const std::int64_t row = i / cols, from = row * 2 * cols + (i - row * cols);
  if constexpr (kFours) {
    const float4 g = load_four(gate_up, type, from), u = load_four(gate_up, type, from + cols);
    store_four(y, y_type, i, {gated(g.x, u.x, y_type), gated(g.y, u.y, y_type), gated(g.z, u.z, y_type), gated(g.w, u.w, y_type)});
  } else {
    store_value(y, y_type, i, gated(load_value(gate_up, type, from), load_value(gate_up, type, from + cols), y_type));
  }
}

}  // namespace

int launch_embed(const std::int32_t* tokens, std::int64_t rows, const void* embedding, DType type, std::int64_t hidden, float* x,
                 Stream stream) {
  return launch_chained(embed, rows, kEmbedThreads, 0, 1, stream, tokens, embedding, type, hidden, x);
}

int launch_rms_norm(const NormProblem& problem, Stream stream) {
  // Few rows want many threads each, many rows few.
  int threads = 128;
  while (threads < kMostThreads && (problem.rows <= 64 ? threads * 4 < problem.cols : threads * 4 * kMostQuads < problem.cols))
    threads *= 2;
  const auto kernel = problem.cols % 4 == 0 && problem.cols <= std::int64_t{threads} * 4 * kMostQuads ? rms_norm<true> : rms_norm<false>;
  return launch_chained(kernel, problem.rows, threads, 0, 1, stream, problem);
}

int launch_rms_norm_exact(const NormProblem& problem, Stream stream) {
  const std::int64_t segments = (problem.cols + kSumSegment - 1) / kSumSegment;
  const int threads = static_cast<int>(std::min<std::int64_t>(segments, kExactThreads / 32)) * 32;
  return launch_chained(segments * 32 <= threads ? rms_norm_exact<true> : rms_norm_exact<false>, problem.rows, threads, 0, 1, stream,
                        problem);
}

int launch_gate(const void* gate_up, DType type, std::int64_t rows, std::int64_t cols, void* y, DType y_type, Stream stream) {
  const bool fours = cols % 4 == 0;
  const std::int64_t threads = rows * cols / (fours ? 4 : 1);
  return launch_chained(fours ? gate<true> : gate<false>, (threads + kGateThreads - 1) / kGateThreads, kGateThreads, 0, 1, stream, gate_up,
                        type, rows, cols, y, y_type);
}

}  // namespace narrow::cuda
