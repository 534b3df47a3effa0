#include <cuda_runtime.h>

#include "kernels/cuda/byte_finish.cuh"
#include "matmul_oracle.h"
#include "totals.cuh"

namespace narrow::cuda::testing {
namespace {

struct Totals {
  double worst, relative;
  unsigned long long outside, touched;
};

__device__ double decode(std::uint8_t code, bool e5m2) {
  return static_cast<double>(__half2float(__half(__nv_cvt_fp8_to_halfraw(code, e5m2 ? __NV_E5M2 : __NV_E4M3))));
}

__device__ double activate_exactly(Activation activation, double v) {
  switch (activation) {
    case Activation::kRelu: return v > 0 ? v : 0;
    case Activation::kGelu: return 0.5 * v * (1 + erf(v * 0.70710678118654752440));
    case Activation::kSilu: return v / (1 + exp(-v));
    default: return v;
  }
}

__device__ double stored(const ByteProblem& p, std::int64_t at) {
  switch (p.epilogue.out) {
    case DType::kF32: return static_cast<const float*>(p.d)[at];
    case DType::kF16: return __half2float(static_cast<const __half*>(p.d)[at]);
    case DType::kBf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(p.d)[at]);
    default: return decode(static_cast<const std::uint8_t*>(p.d)[at], p.epilogue.out == DType::kF8E5m2) * p.epilogue.out_scale;
  }
}

/// Half a unit in the last place of the output type at v, or half its smallest step.
__device__ double rounding(const ByteProblem& p, double v) {
  const double scale = p.epilogue.out_scale;
  switch (p.epilogue.out) {
    case DType::kF32: return ldexp(fabs(v), -24) + ldexp(1.0, -150);
    case DType::kF16: return ldexp(fabs(v), -11) + ldexp(1.0, -25);
    case DType::kBf16: return ldexp(fabs(v), -8) + ldexp(1.0, -134);
    case DType::kF8E4m3: return ldexp(fabs(v), -4) + scale * ldexp(1.0, -10);
    default: return ldexp(fabs(v), -3) + scale * ldexp(1.0, -17);
  }
}

__device__ double largest(const ByteProblem& p) {
  if (p.epilogue.out == DType::kF16) return 65504.0;
  if (p.epilogue.out == DType::kF8E4m3) return 448.0 * p.epilogue.out_scale;
  if (p.epilogue.out == DType::kF8E5m2) return 57344.0 * p.epilogue.out_scale;
  return 3.3e38;
}

__device__ bool is_poison(const ByteProblem& p, std::int64_t at) {
  const int bytes = p.epilogue.out == DType::kF32 ? 4 : (p.epilogue.out == DType::kF16 || p.epilogue.out == DType::kBf16 ? 2 : 1);
  for (int i = 0; i < bytes; ++i)
    if (static_cast<const std::uint8_t*>(p.d)[at * bytes + i] != kMatmulPoison) return false;
  return true;
}

__global__ void compare(const ByteProblem p, std::int64_t rows, const float* old, Totals* totals) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = i / p.n;
  if (row >= rows) return;
  const int column = static_cast<int>(i % p.n);
  const std::int64_t at = row * p.d_pitch + column;
  int group = 0;
  bool real = true;
  if (p.grouping == ByteGrouping::kRowCounts || p.grouping == ByteGrouping::kDepth) group = static_cast<int>(row / p.m);
  if (p.grouping == ByteGrouping::kRowCounts) real = row % p.m < p.offsets[group];
  if (p.grouping == ByteGrouping::kRowOffsets) {
    while (group < p.groups && p.offsets[group + 1] <= row) ++group;
    real = group < p.groups && row >= p.offsets[0];
  }
  if (!real) {
    if (!is_poison(p, at)) atomicAdd(&totals->touched, 1ull);
    return;
  }
  const bool depth = p.grouping == ByteGrouping::kDepth;
  const std::int64_t row_a = depth ? row % p.m : row, row_b = (depth ? 0 : std::int64_t{group} * p.n) + column;
  const bool counts = p.grouping == ByteGrouping::kRowCounts;
  const std::int64_t scale_row_a = counts ? group * round_up_to_4(p.m) + row_a - std::int64_t{group} * p.m : row_a;
  const std::int64_t scale_row_b = (depth ? 0 : group * round_up_to_4(p.n)) + column;
  const int begin = depth ? p.offsets[group] : 0, end = depth ? p.offsets[group + 1] : p.k;
  const int k_blocks = (p.k + 127) / 128, n_blocks = (p.n + 127) / 128;
  double sum = 0, magnitude = 0, cut = 0;
  const bool outer = is_outer(p.scaling), fast = p.scaling == ByteScaling::kOuterFast;
  for (int k = begin; k < end; k += 128) {
    // Hopper's tensor cores add 32 products and the accumulator at a time: all are aligned to the largest of them and keep 13 fraction
    // bits, so that each of the 33 loses up to 2^-13 of the largest. With fast accumulation the accumulator holds all blocks so far.
    double part = 0, absolute = 0, lost = 0;
    for (int step = k; step < min(k + 128, end); step += 32) {
      double most = fmax(fabs(part), fast ? fabs(sum + part) : 0.0);
      for (int j = step; j < min(step + 32, end); ++j) {
        const double product = decode(p.a[row_a * p.a_pitch + j], p.a_is_e5m2) * decode(p.b[row_b * p.b_pitch + j], p.b_is_e5m2);
        part += product;
        absolute += fabs(product);
        most = fmax(most, fabs(product));
      }
      lost += 33 * ldexp(most, -13);
    }
    double factor = 1;
    if (!outer) factor = p.a_scales[(k / 128) * p.a_scale_rows + scale_row_a];
    if (p.scaling == ByteScaling::kBlockTile)
      factor *= p.b_scales[(std::int64_t{depth ? 0 : group} * n_blocks + column / 128) * k_blocks + k / 128];
    if (p.scaling == ByteScaling::kBlockBlock) factor *= p.b_scales[(k / 128) * p.b_scale_rows + scale_row_b];
    sum += factor * part;
    magnitude += factor * absolute;
    cut += factor * lost;
  }
  if (outer) {
    const double factor = static_cast<double>(p.a_scales[row_a * p.a_scale_step]) * p.b_scales[row_b * p.b_scale_step];
    sum *= factor;
    magnitude *= factor;
    cut *= factor;
  }
  // Across blocks and in the epilogue it is fp32. The activations' slopes are at most 1.13.
  const double terms = end - begin, fp32 = ldexp(1.0, -24);
  double error = cut + (terms / 128 + 8) * fp32 * magnitude;
  if (p.epilogue.bias != nullptr) sum += p.epilogue.bias[column], error += 4 * fp32 * (fabs(sum) + magnitude);
  double exact = activate_exactly(p.epilogue.activation, sum);
  error = 1.13 * error + 8 * fp32 * fabs(exact) + ldexp(1.0, -140);
  if (p.epilogue.residual != nullptr) exact += load_value(p.epilogue.residual, p.epilogue.residual_type, row * p.n + column);
  if (p.epilogue.accumulate) exact += old[at];
  error += 4 * fp32 * fabs(exact);
  const double limit = largest(p), clipped = fmin(fmax(exact, -limit), limit), bound = error + rounding(p, fabs(clipped) + error);
  const double share = fabs(stored(p, at) - clipped) / bound;
  if (!(share <= 1.0)) atomicAdd(&totals->outside, 1ull);
  const double relative = fabs(stored(p, at) - clipped) / fmax(magnitude, 1e-300);
  if (relative > 0)
    atomicMax(reinterpret_cast<unsigned long long*>(&totals->relative), static_cast<unsigned long long>(__double_as_longlong(relative)));
  if (share > 0)
    atomicMax(reinterpret_cast<unsigned long long*>(&totals->worst), static_cast<unsigned long long>(__double_as_longlong(share)));
}

}  // namespace

MatmulErrors compare_with_oracle(const ByteProblem& problem, const float* old, Stream stream) {
  const bool batched = problem.grouping == ByteGrouping::kRowCounts || problem.grouping == ByteGrouping::kDepth;
  const std::int64_t rows = std::int64_t{problem.m} * (batched ? problem.groups : 1), count = rows * problem.n;
  const Totals totals = totals_of<Totals>(
      count, stream, [&](unsigned blocks, Totals* found) { compare<<<blocks, kOracleThreads, 0, stream>>>(problem, rows, old, found); });
  return {totals.worst, totals.relative, totals.outside, totals.touched};
}

}  // namespace narrow::cuda::testing
