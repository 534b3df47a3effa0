/// The fused neighbours for any row length and alignment: one thread block per row, inputs read again in every pass.
/// Mapping:  sums: a warp per 1024-element segment, lane p its partial sum p; the rest: a thread per element.
/// Bound:    the second-level cache, 2 (elementwise) to 4 (LayerNorm) reads per element.
/// Meaning:  kernels/reference/fused.cc and kernels/reference/quantize.cc, bit for bit.

#include "format/elementary.h"
#include "format/layout.h"
#include "format/row_sum.h"
#include "kernels/cuda/fused.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Row {
  const FusedQuantizeProblem& problem;
  std::int64_t row;
  float mean = 0.0f, factor = 1.0f;

  /// The value that a norm takes the mean of; of elementwise operations x itself.
  __device__ float input(std::int64_t col) const {
    const FusedProblem& fused = problem.fused;
    if (fused.op == FusedOp::kAddRmsNorm)
      return load_value(fused.residual, fused.dtype, row * fused.other_stride + col);  // already the sum
    return load_value(fused.x, fused.dtype, row * fused.x_stride + col);
  }

  __device__ float output(std::int64_t col) const {
    const FusedProblem& fused = problem.fused;
    const float x = input(col);
    const auto weight = [&] { return fused.weight == nullptr ? 1.0f : load_value(fused.weight, fused.weight_dtype, col); };
    float y = x;
    switch (fused.op) {
      case FusedOp::kIdentity: break;
      case FusedOp::kLayerNorm:
        y = __fmaf_rn(__fmul_rn(__fadd_rn(x, -mean), factor), weight(),
                      fused.bias == nullptr ? 0.0f : load_value(fused.bias, fused.weight_dtype, col));
        break;
      case FusedOp::kRmsNorm:
      case FusedOp::kAddRmsNorm: y = __fmul_rn(__fmul_rn(x, factor), weight()); break;
      case FusedOp::kSiluMul: y = __fmul_rn(silu_f32(x), load_value(fused.other, fused.dtype, row * fused.other_stride + col)); break;
      case FusedOp::kGelu: y = gelu_f32(x); break;
      case FusedOp::kGeluTanh: y = gelu_tanh_f32(x); break;
    }
    return y != y ? __uint_as_float(0x7FC00000u) : y;
  }
};

/// row_sum over the thread block; every thread gets it. sums: one float per warp.
template <typename Join>
__device__ double block_sum(std::int64_t cols, float* sums, const Join& join) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  double total = 0.0;
  for (std::int64_t begin = 0; begin < cols; begin += std::int64_t{kSumSegment} * kWarps) {
    const std::int64_t first = begin + warp * kSumSegment, end = first + kSumSegment < cols ? first + kSumSegment : cols;
    float sum = 0.0f;
    for (std::int64_t i = first + lane; i < end; i += 32) sum = join(sum, i);
    for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
    __syncthreads();
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) total = __dadd_rn(total, static_cast<double>(sums[i]));
  }
  return total;
}

__device__ std::uint32_t finite_bits(float y) {
  const std::uint32_t magnitude = __float_as_uint(y) & 0x7FFFFFFFu;
  return magnitude < 0x7F800000u ? magnitude : 0u;
}

__device__ std::uint32_t block_largest(std::uint32_t value, std::uint32_t* warps) {
  value = __reduce_max_sync(0xFFFFFFFFu, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) value = max(value, warps[i]);
  return value;
}

__device__ float scale_from(std::uint32_t magnitude, const Format& format) {
  const float amax = __uint_as_float(magnitude);
  if (amax == 0.0f) return 1.0f;
  const float scale = __fdiv_rn(amax, static_cast<float>(format.largest()));
  return scale == 0.0f ? __uint_as_float(1u) : scale;
}

__device__ void store_scale(const FusedQuantizeProblem& problem, std::int64_t row, std::int64_t block, float scale) {
  if (row != 0 && problem.steps.row_step == 0) return;  // one scale for the tensor
  problem.scales[row * problem.steps.row_step + block * problem.steps.block_step] = scale;
  if (row == problem.fused.rows - 1)
    for (std::int64_t i = row + 1; i < problem.scale_rows; ++i)
      problem.scales[i * problem.steps.row_step + block * problem.steps.block_step] = 0.0f;
}

__device__ void store_code(const FusedQuantizeProblem& problem, std::int64_t row, std::int64_t col, std::uint32_t code) {
  if (!problem.col32) {
    problem.codes[row * problem.row_bytes + col] = static_cast<std::uint8_t>(code);
    return;
  }
  const std::int64_t rows = problem.matrix_rows, cols = problem.fused.cols, matrix = row / rows;
  problem.codes[matrix * map_size(Layout::kCol32, rows, cols) + map_offset(Layout::kCol32, row - matrix * rows, col, rows, cols)] =
      static_cast<std::uint8_t>(code);
}

__global__ void __launch_bounds__(kThreads) fused_generic(const __grid_constant__ FusedQuantizeProblem problem) {
  __shared__ float sums[kWarps];
  __shared__ std::uint32_t warps[kWarps];
  const FusedProblem& fused = problem.fused;
  const Format format = format_of(problem.element);
  const std::int64_t cols = fused.cols, thread = threadIdx.x;
  for (std::int64_t index = blockIdx.x; index < fused.rows; index += gridDim.x) {
    Row row{problem, index};
    if (fused.op == FusedOp::kAddRmsNorm) {
      const std::int64_t start = index * fused.other_stride;
      for (std::int64_t i = thread; i < cols; i += kThreads) {
        float sum =
            __fadd_rn(load_value(fused.x, fused.dtype, index * fused.x_stride + i), load_value(fused.other, fused.dtype, start + i));
        if (sum != sum) sum = __uint_as_float(0x7FC00000u);
        store_value(fused.residual, fused.dtype, start + i, sum);
      }
      __syncthreads();
    }
    if (fused.op == FusedOp::kLayerNorm) {
      row.mean = mean_from_sum(block_sum(cols, sums, [&](float sum, std::int64_t i) { return __fadd_rn(sum, row.input(i)); }), cols);
      const float variance = mean_from_sum(block_sum(cols, sums,
                                                     [&](float sum, std::int64_t i) {
                                                       const float d = __fadd_rn(row.input(i), -row.mean);
                                                       return __fmaf_rn(d, d, sum);
                                                     }),
                                           cols);
      row.factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, fused.epsilon)));
    } else if (fused.op == FusedOp::kRmsNorm || fused.op == FusedOp::kAddRmsNorm) {
      const float mean =
          mean_from_sum(block_sum(cols, sums, [&](float sum, std::int64_t i) { return __fmaf_rn(row.input(i), row.input(i), sum); }), cols);
      row.factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, fused.epsilon)));
    }
    const std::int64_t width = problem.per_block ? 128 : cols;
    // Per block a warp each, else the thread block together.
    const int workers = problem.per_block ? 32 : kThreads, worker = static_cast<int>(threadIdx.x) % workers;
    for (std::int64_t block = problem.per_block ? thread / 32 : 0; block * width < cols; block += problem.per_block ? kWarps : 1) {
      const std::int64_t begin = block * width, end = begin + width < cols ? begin + width : cols;
      float scale;
      if (problem.given != nullptr) {
        scale = problem.given[index * problem.given_steps.row_step + block * problem.given_steps.block_step];
      } else {
        std::uint32_t magnitude = 0;
        for (std::int64_t i = begin + worker; i < end; i += workers) magnitude = max(magnitude, finite_bits(row.output(i)));
        magnitude = problem.per_block ? __reduce_max_sync(0xFFFFFFFFu, magnitude) : block_largest(magnitude, warps);
        scale = scale_from(magnitude, format);
      }
      if (worker == 0) store_scale(problem, index, block, scale);
      for (std::int64_t i = begin + worker; i < end; i += workers) {
        const float y = row.output(i);
        store_code(problem, index, i, encode(format, y != y ? y : __fdiv_rn(y, scale)));
      }
    }
    if (problem.col32)
      for (std::int64_t i = cols + thread; i < padded(cols, 32); i += kThreads) store_code(problem, index, i, 0);
    __syncthreads();
  }
}

bool accepts(const FusedQuantizeProblem&) { return true; }

int launch(const FusedQuantizeProblem& problem, Stream stream) {
  const std::int64_t most = std::int64_t{multiprocessors()} * 8;
  return launch_kernel(fused_generic, problem.fused.rows < most ? problem.fused.rows : most, kThreads, stream, problem);
}

}  // namespace

const FusedQuantizeKernel kFusedGeneric{"cuda_fused_generic", accepts, launch};

}  // namespace narrow::cuda
