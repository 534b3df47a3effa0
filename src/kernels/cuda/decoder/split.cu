/// fp32 inputs through products of fp16: x = high + 2^-11 low, two fp16 values that keep 22 bits of it, as two rows of one product; and
/// the two rows of its sums as one again.
/// Bound: memory.

#include "kernels/cuda/decoder/exact.h"
#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kUp = 0x1p11f, kDown = 0x1p-11f;

__device__ float high_of(float x) { return __half2float(__float2half_rn(saturated_f16(x))); }

/// kStep neighbours of a row per thread.
template <int kStep>
__global__ void split_rows(const float* x, std::int64_t rows, std::int64_t cols, void* parts) {
  begin_after_earlier_kernels();
  const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kStep;
  if (i >= rows * cols) return;
  const std::int64_t row = i / cols, to = row * cols + i;  // row 2 * row of the parts
  if constexpr (kStep == 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + i), high{high_of(v.x), high_of(v.y), high_of(v.z), high_of(v.w)};
    store_four(parts, DType::kF16, to, high);
    store_four(parts, DType::kF16, to + cols, {(v.x - high.x) * kUp, (v.y - high.y) * kUp, (v.z - high.z) * kUp, (v.w - high.w) * kUp});
  } else {
    store_value(parts, DType::kF16, to, x[i]);
    store_value(parts, DType::kF16, to + cols, (x[i] - high_of(x[i])) * kUp);
  }
}

__global__ void join_rows(const JoinRowsProblem p) {
  begin_after_earlier_kernels();
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.rows * p.cols) return;
  const std::int64_t row = i / p.cols, col = i - row * p.cols, from = row * p.cols + i, to = row * p.pitch + col;
  float low = p.sums[from + p.cols];
  if (p.low_sums != nullptr) low += p.low_sums[from];
  float y = fmaf(low, kDown, p.sums[from]);
  if (p.bias != nullptr) y += p.bias[col];
  if (p.residual != nullptr) y += p.residual[to];
  p.y[to] = y;
}

}  // namespace

int launch_split_rows(const float* x, std::int64_t rows, std::int64_t cols, void* parts, Stream stream) {
  const bool fours = cols % 4 == 0;
  const std::int64_t threads = rows * cols / (fours ? 4 : 1);
  return launch_chained(fours ? split_rows<4> : split_rows<1>, (threads + kThreads - 1) / kThreads, kThreads, 0, 1, stream, x, rows, cols,
                        parts);
}

int launch_join_rows(const JoinRowsProblem& problem, Stream stream) {
  return launch_chained(join_rows, (problem.rows * problem.cols + kThreads - 1) / kThreads, kThreads, 0, 1, stream, problem);
}

}  // namespace narrow::cuda
