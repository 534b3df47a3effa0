#include "weight_oracle.h"

#include <cuda_runtime.h>

#include "kernels/cuda/weight_finish.cuh"

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "totals.cuh"

namespace narrow::cuda::testing {
namespace {

struct Totals {
  double worst;
  unsigned long long outside;
};

__device__ double activate_exactly(Activation activation, double v) {
  switch (activation) {
    case Activation::kRelu: return v > 0 ? v : 0;
    case Activation::kGelu: return 0.5 * v * (1 + erf(v * 0.70710678118654752440));
    case Activation::kSilu: return v / (1 + exp(-v));
    default: return v;
  }
}

/// Half a unit in the last place of the output type at v, or half its smallest step.
__device__ double rounding(DType type, double v) {
  if (type == DType::kF32) return ldexp(fabs(v), -24) + ldexp(1.0, -150);
  if (type == DType::kF16) return ldexp(fabs(v), -11) + ldexp(1.0, -25);
  return ldexp(fabs(v), -8) + ldexp(1.0, -134);
}

__global__ void compare(const WeightProblem p, const WeightView w, Totals* totals) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= std::int64_t{p.m} * w.n) return;
  const int row = static_cast<int>(i / w.n), column = static_cast<int>(i % w.n);
  const double outer = w.outer_scale != nullptr ? *w.outer_scale : 1.0;
  double sum = 0, magnitude = 0;
  for (int k = 0; k < w.k; ++k) {
    const std::uint32_t code = read_code(w.codes + column * w.row_bytes, k, w.scheme.element.bits);
    double value = decode(w.scheme.element, code);
    if (w.scheme.has_scales()) {
      const std::int64_t cell = w.grid.grid_row(column) * w.grid.cols + w.grid.grid_col(k);
      if (w.scheme.asymmetric) value = static_cast<double>(code) - w.zero_points[cell];
      value *= static_cast<double>(decode(w.scheme.scale, load_scale_code(w.scales, w.scheme.scale, cell))) * outer;
    }
    const double x = cuda::load_value(p.x, p.x_type, row * p.x_pitch + (p.order != nullptr ? p.order[k] : k));
    sum += x * value;
    magnitude += fabs(x * value);
  }
  // gamma(K) of the contract; eight more operations are the scales and the epilogue. The activations' slopes are at most 1.13.
  const double fp32 = ldexp(1.0, -24);
  const WeightEpilogue& e = p.epilogue;
  const std::int64_t dense = std::int64_t{row} * w.n + column;
  double error = (w.k + 8) * fp32 * magnitude;
  if (e.bias != nullptr) sum += e.bias[column], error += 4 * fp32 * (fabs(sum) + magnitude);
  double exact = activate_exactly(e.activation, sum);
  if (e.activation != Activation::kNone) error = 1.13 * error + 8 * fp32 * fabs(exact) + ldexp(1.0, -140);
  if (e.multiplier != nullptr) {
    const double factor = cuda::load_value(e.multiplier, e.multiplier_type, dense);
    exact *= factor;
    error = error * fabs(factor) + 2 * fp32 * fabs(exact);
  }
  if (e.residual != nullptr) exact += cuda::load_value(e.residual, e.residual_type, dense), error += 2 * fp32 * fabs(exact);
  const double limit = e.out == DType::kF16 ? 65504.0 : 3.3e38, clipped = fmin(fmax(exact, -limit), limit);
  const double y = cuda::load_value(p.y, e.out, row * p.y_pitch + column);
  if (isnan(exact) || isinf(exact)) {  // NaN and infinity in a weight
    if (isnan(exact) != isnan(y) || (isinf(exact) && fabs(y) < limit)) atomicAdd(&totals->outside, 1ull);
    return;
  }
  const double share = fabs(y - clipped) / (error + rounding(e.out, fabs(clipped) + error));
  if (!(share <= 1.0)) atomicAdd(&totals->outside, 1ull);
  if (share > 0)
    atomicMax(reinterpret_cast<unsigned long long*>(&totals->worst), static_cast<unsigned long long>(__double_as_longlong(share)));
}

}  // namespace

WeightErrors compare_with_oracle(const WeightProblem& problem, const WeightView& canonical, Stream stream) {
  const Totals totals = totals_of<Totals>(std::int64_t{problem.m} * canonical.n, stream, [&](unsigned blocks, Totals* found) {
    compare<<<blocks, kOracleThreads, 0, stream>>>(problem, canonical, found);
  });
  return {totals.worst, totals.outside};
}

}  // namespace narrow::cuda::testing
