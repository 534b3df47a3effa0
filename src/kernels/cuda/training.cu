/// Gradients of fake-quantize, unscaling, loss scale and amax history.
/// Mapping:  backward: a thread block per row, sums by a warp per segment (format/row_sum.h); unscale: a thread per element, strided by the
/// grid; the
///           two state updates: one thread, one thread block per tensor.
/// Bound:    memory; x and grad_y read, grad_x written.
/// Meaning:  format/training_rule.h.

#include "format/row_sum.h"
#include "format/training_rule.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/training.h"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// One cell's elements [begin, end) of a row by `warps` warps, of which this is `warp`: gradients of x, and the sum in row_sum's order, in
/// every lane of warp 0 (cells of one warp: of that warp). sums: one float per warp, unused where warps is 1.
__device__ double backward_cell(const FakeQuantizeBackwardProblem& problem, std::int64_t start, std::int64_t begin, std::int64_t end,
                                float scale, int warp, int warps, float* sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Format format = problem.format;
  double total = 0.0;
  for (std::int64_t first = begin; first < end; first += std::int64_t{kSumSegment} * warps) {
    const std::int64_t from = first + std::int64_t{warp} * kSumSegment, to = from + kSumSegment < end ? from + kSumSegment : end;
    float sum = 0.0f;
    for (std::int64_t i = from + lane; i < to; i += 32) {
      const float gradient = load_value(problem.grad_y, problem.dtype, start + i);
      const StepGradient step = step_gradient(format, load_value(problem.x, problem.dtype, start + i), scale);
      if (!step.passes)
        store_value(problem.grad_x, problem.dtype, start + i, 0.0f);
      else if (problem.grad_x != problem.grad_y)
        store_value(problem.grad_x, problem.dtype, start + i, gradient, Overflow::kIeee);
      sum = __fadd_rn(sum, __fmul_rn(gradient, step.step));
    }
    for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
    if (warps == 1) {
      total = __dadd_rn(total, static_cast<double>(sum));
      continue;
    }
    __syncthreads();
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warps; ++i)
      if (first + std::int64_t{i} * kSumSegment < end) total = __dadd_rn(total, static_cast<double>(sums[i]));
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) backward(const __grid_constant__ FakeQuantizeBackwardProblem problem) {
  __shared__ float sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool small = problem.width <= kSumSegment;  // a warp per cell
  const std::int64_t cells = (problem.cols + problem.width - 1) / problem.width;
  for (std::int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x)
    for (std::int64_t cell = small ? warp : 0; cell < cells; cell += small ? kWarps : 1) {
      const std::int64_t begin = cell * problem.width, end = begin + problem.width < problem.cols ? begin + problem.width : problem.cols;
      const std::int64_t index = problem.whole_tensor ? 0 : row * cells + cell;
      const double sum =
          backward_cell(problem, row * problem.cols, begin, end, problem.scales[index], small ? 0 : warp, small ? 1 : kWarps, sums);
      if (problem.grad_scales == nullptr || (small ? threadIdx.x % 32 : threadIdx.x) != 0) continue;
      if (problem.whole_tensor)
        problem.row_sums[row] = sum;
      else
        problem.grad_scales[index] = scale_gradient(sum, problem.factor);
    }
}

/// The rows' sums to one gradient: one warp, in lane_sum's order.
__global__ void __launch_bounds__(32) fold_rows(const double* row_sums, std::int64_t rows, float* gradient, float factor) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < rows; i += 32) sum = __dadd_rn(sum, row_sums[i]);
  for (int half = 16; half > 0; half /= 2) sum = __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
  if (threadIdx.x == 0) *gradient = scale_gradient(sum, factor);
}

__global__ void __launch_bounds__(kThreads)
    unscale(const void* gradient, DType from, const float* scale, void* out, DType to, std::int64_t count, std::uint32_t* flags) {
  const float inverse = __fdiv_rn(1.0f, *scale);
  std::uint32_t seen = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const float value = load_value(gradient, from, i);
    const std::uint32_t magnitude = __float_as_uint(value) & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u) seen |= magnitude > 0x7F800000u ? 1u : 2u;
    store_value(out, to, i, magnitude > 0x7F800000u ? __uint_as_float(0x7FC00000u) : __fmul_rn(value, inverse), Overflow::kIeee);
  }
  seen = __reduce_or_sync(0xFFFFFFFFu, seen);
  if (threadIdx.x % 32 == 0 && seen != 0) atomicOr(flags, seen);
}

__global__ void step_loss_scale(float* scale, std::uint32_t* steps, std::uint32_t* flags, LossScaleOptions options) {
  const LossScaleState next = next_loss_scale({*scale, *steps}, *flags != 0, options.growth, options.backoff, options.interval);
  *scale = next.scale;
  *steps = next.steps;
  *flags = 0;
}

__global__ void __launch_bounds__(1024)
    step_amax_history(float* history, float* amax, float* scales, int length, float largest, float power, bool most_recent) {
  __shared__ std::uint32_t warps[32];
  const std::int64_t tensor = blockIdx.x;
  const int i = static_cast<int>(threadIdx.x);
  float* mine = history + tensor * length;
  const float newest = amax[tensor];
  const float value = i >= length ? 0.0f : (i == 0 ? newest : mine[i - 1]);
  const std::uint32_t seen = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(value) & 0x7FFFFFFFu);  // a NaN is above all: the scale stays
  if (i % 32 == 0) warps[i / 32] = seen;
  __syncthreads();
  if (i < length) mine[i] = value;
  if (i != 0) return;
  std::uint32_t highest = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) highest = max(highest, warps[warp]);
  scales[tensor] = delayed_scale(most_recent ? newest : __uint_as_float(highest), scales[tensor], largest, power);
  amax[tensor] = 0.0f;
}

}  // namespace

int launch_fake_quantize_backward(const FakeQuantizeBackwardProblem& problem, Stream stream) {
  const std::int64_t most = std::int64_t{multiprocessors()} * 8;
  const int error = launch_kernel(backward, problem.rows < most ? problem.rows : most, kThreads, stream, problem);
  if (error != cudaSuccess || !problem.whole_tensor || problem.grad_scales == nullptr) return error;
  return launch_kernel(fold_rows, 1, 32, stream, static_cast<const double*>(problem.row_sums), problem.rows, problem.grad_scales,
                       problem.factor);
}

int launch_unscale(const void* gradient, DType from, const float* scale, void* out, DType to, std::int64_t count, std::uint32_t* flags,
                   Stream stream) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads, most = std::int64_t{multiprocessors()} * 8;
  return launch_kernel(unscale, blocks < most ? blocks : most, kThreads, stream, gradient, from, scale, out, to, count, flags);
}

int launch_update_loss_scale(float* scale, std::uint32_t* steps, std::uint32_t* flags, const LossScaleOptions& options, Stream stream) {
  return launch_kernel(step_loss_scale, 1, 1, stream, scale, steps, flags, options);
}

int launch_update_amax_history(float* history, float* amax, float* scales, std::int64_t tensors, int length,
                               const DelayedScalingOptions& options, float power, Stream stream) {
  return launch_kernel(step_amax_history, tensors, (length + 31) / 32 * 32, stream, history, amax, scales, length, options.largest, power,
                       options.most_recent);
}

}  // namespace narrow::cuda
