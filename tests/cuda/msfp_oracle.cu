#include <cuda_runtime.h>

#include "kernels/storage.h"
#include "msfp_oracle.h"
#include "totals.cuh"

namespace narrow::cuda::testing {
namespace {

struct Operands {
  const float* x;
  const float* w;
  const float* bias;
  const void* y;
  DType out;
  std::int64_t m, n, k, y_pitch;
};

__global__ void compare(const Operands p, unsigned long long* wrong) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = i / p.n, column = i % p.n;
  if (row >= p.m) return;
  double sum = 0.0, absolute = 0.0;
  for (std::int64_t k = 0; k < p.k; ++k) {
    const double product = static_cast<double>(p.x[row * p.k + k]) * static_cast<double>(p.w[column * p.k + k]);
    sum += product;
    absolute += fabs(product);
  }
  if (p.bias != nullptr) sum += p.bias[column], absolute += fabs(static_cast<double>(p.bias[column]));
  const double unit = 0x1p-24, gamma = static_cast<double>(p.k) * unit / (1.0 - static_cast<double>(p.k) * unit);
  const double slack = gamma * absolute + 0x1p-149;
  std::uint32_t bits = 0;
  store_value(&bits, p.out, 0, static_cast<float>(sum - slack));
  const float low = load_value(&bits, p.out, 0);
  store_value(&bits, p.out, 0, static_cast<float>(sum + slack));
  const float high = load_value(&bits, p.out, 0), got = load_value(p.y, p.out, row * p.y_pitch + column);
  if (!(got >= low && got <= high)) atomicAdd(wrong, 1ull);
}

}  // namespace

unsigned long long count_outside(const Tensor& x, const Tensor& w, const float* bias, const Tensor& y, Stream stream) {
  const Operands operands{x.as<float>(), w.as<float>(), bias,         y.data(),      y.dtype(),
                          x.shape()[0],  w.shape()[0],  x.shape()[1], y.strides()[0]};
  return totals_of<unsigned long long>(operands.m * operands.n, stream, [&](unsigned blocks, unsigned long long* wrong) {
    compare<<<blocks, kOracleThreads, 0, stream>>>(operands, wrong);
  });
}

}  // namespace narrow::cuda::testing
