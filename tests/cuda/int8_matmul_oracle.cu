#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "int8_matmul_oracle.h"
#include "kernels/storage.h"
#include "totals.cuh"

namespace narrow::cuda::testing {
namespace {

__device__ long long code_at(const CanonicalSide& side, std::int64_t row, int k, int columns) {
  const std::uint8_t code = side.codes[row * columns + k];
  return side.zero_points != nullptr ? static_cast<long long>(code) - side.zero_points[row * side.step] : static_cast<std::int8_t>(code);
}

__device__ float activated(Activation activation, float v) {
  const double x = v;
  switch (activation) {
    case Activation::kRelu: return v > 0.0f ? v : 0.0f;
    case Activation::kGelu: return static_cast<float>(0.5 * x * (1 + erf(x * 0.70710678118654752440)));
    case Activation::kSilu: return static_cast<float>(x / (1 + exp(-x)));
    default: return v;
  }
}

__global__ void compare(const CanonicalSide x, const CanonicalSide w, const ByteProblem p, unsigned long long* wrong) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = i / p.n;
  if (row >= p.m) return;
  const int column = static_cast<int>(i % p.n);
  const std::int64_t at = p.d_is_col32 ? (std::int64_t{column} / 32 * p.m + row) * 32 + column % 32 : row * p.d_pitch + column;
  long long sum = 0;
  for (int k = 0; k < p.k; ++k) sum += code_at(x, row, k, p.k) * code_at(w, column, k, p.k);
  const ByteEpilogue& e = p.epilogue;
  if (e.out == DType::kI32) {
    if (static_cast<const int*>(p.d)[at] != static_cast<int>(sum)) atomicAdd(wrong, 1ull);
    return;
  }
  float v = __fmul_rn(static_cast<float>(sum), __fmul_rn(x.scales[row * x.step], w.scales[column * w.step]));
  if (e.bias != nullptr) v = __fadd_rn(v, e.bias[column]);
  const bool smooth = e.activation == Activation::kGelu || e.activation == Activation::kSilu;
  const float slack = smooth ? 4e-6f * (fabsf(v) + 1.0f) : 0.0f;
  v = activated(e.activation, v);
  if (e.residual != nullptr) v = __fadd_rn(v, load_value(e.residual, e.residual_type, row * p.n + column));
  bool right = true;
  if (e.out == DType::kI8) {
    constexpr Format kFormat = kInt8;
    const float q = __fdiv_rn(v, e.out_scale), lost = slack / e.out_scale;
    const auto low = static_cast<std::int8_t>(encode(kFormat, q - lost)), high = static_cast<std::int8_t>(encode(kFormat, q + lost));
    const std::int8_t got = static_cast<const std::int8_t*>(p.d)[at];
    right = got >= low && got <= high;
  } else if (e.out == DType::kF32) {
    right = fabsf(static_cast<const float*>(p.d)[at] - v) <= slack;
  } else {
    const float got = load_value(p.d, e.out, at);
    float low = 0, high = 0;
    std::uint16_t bits[2];
    store_value(bits, e.out, 0, v - slack);
    store_value(bits, e.out, 1, v + slack);
    low = load_value(bits, e.out, 0);
    high = load_value(bits, e.out, 1);
    right = got >= low && got <= high;
  }
  if (!right) atomicAdd(wrong, 1ull);
}

}  // namespace

unsigned long long count_wrong(const CanonicalSide& x, const CanonicalSide& w, const ByteProblem& problem, Stream stream) {
  return totals_of<unsigned long long>(std::int64_t{problem.m} * problem.n, stream, [&](unsigned blocks, unsigned long long* wrong) {
    compare<<<blocks, kOracleThreads, 0, stream>>>(x, w, problem, wrong);
  });
}

}  // namespace narrow::cuda::testing
