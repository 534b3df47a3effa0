#include <cuda_runtime.h>

#include "int1_matmul_oracle.h"
#include "kernels/storage.h"
#include "totals.cuh"

namespace narrow::cuda::testing {
namespace {

__device__ int value_at(const CanonicalBits& side, std::int64_t row, int k, int columns) {
  return (side.codes[row * ((columns + 7) / 8) + k / 8] >> (k % 8) & 1) != 0 ? 1 : -1;
}

__device__ double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kGelu: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case Activation::kSilu: return x / (1 + exp(-x));
    default: return x;
  }
}

__global__ void compare(const CanonicalBits x, const CanonicalBits w, const BitProblem p, unsigned long long* wrong) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = i / p.n;
  if (row >= p.m) return;
  const int column = static_cast<int>(i % p.n);
  const std::int64_t at = row * p.d_pitch + column;
  int sum = 0;
  for (int k = 0; k < p.k; ++k) sum += value_at(x, row, k, p.k) * value_at(w, column, k, p.k);
  const ByteEpilogue& e = p.epilogue;
  if (e.out == DType::kI32) {
    if (static_cast<const int*>(p.d)[at] != sum) atomicAdd(wrong, 1ull);
    return;
  }
  float v = __fmul_rn(static_cast<float>(sum), __fmul_rn(x.scales[row * x.step], w.scales[column * w.step]));
  if (e.bias != nullptr) v = __fadd_rn(v, e.bias[column]);
  const bool smooth = e.activation == Activation::kGelu || e.activation == Activation::kSilu;
  const float slack = smooth ? 4e-6f * (fabsf(v) + 1.0f) : 0.0f;
  v = static_cast<float>(activated(e.activation, v));
  if (e.residual != nullptr) v = __fadd_rn(v, load_value(e.residual, e.residual_type, row * p.n + column));
  float ends[2] = {v - slack, v + slack}, rounded[2];
  store_value(rounded, e.out, 0, ends[0]);
  const float low = load_value(rounded, e.out, 0);
  store_value(rounded, e.out, 0, ends[1]);
  const float high = load_value(rounded, e.out, 0), got = load_value(p.d, e.out, at);
  if (!(got >= low && got <= high)) atomicAdd(wrong, 1ull);
}

}  // namespace

unsigned long long count_wrong(const CanonicalBits& x, const CanonicalBits& w, const BitProblem& problem, Stream stream) {
  return totals_of<unsigned long long>(std::int64_t{problem.m} * problem.n, stream, [&](unsigned blocks, unsigned long long* wrong) {
    compare<<<blocks, kOracleThreads, 0, stream>>>(x, w, problem, wrong);
  });
}

}  // namespace narrow::cuda::testing
