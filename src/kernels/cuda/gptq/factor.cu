/// What goes into the factorization of a Hessian, and what is taken from it.

#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) take_diagonal(const double* moment, std::int64_t k, double* diagonal) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < k) diagonal[i] = moment[i * k + i];
}

__global__ void __launch_bounds__(kThreads)
    turn_backwards(const double* moment, std::int64_t k, const std::int32_t* order, double unit, double damping, double* backwards) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= k * k) return;
  const std::int64_t row = index / k, col = index % k, i = order[k - 1 - row], j = order[k - 1 - col];
  double value = unit * moment[min(i, j) * k + max(i, j)];
  if (i == j) value = (value == 0.0 ? 1.0 : value) + damping;
  backwards[index] = value;
}

__global__ void __launch_bounds__(kThreads) damp(const double* moment, std::int64_t k, double unit, double damping, float* h) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= k * k) return;
  const std::int64_t i = index / k, j = index % k;
  const float value = static_cast<float>(unit * moment[min(i, j) * k + max(i, j)]);
  h[index] = i == j ? value + static_cast<float>(damping) : value;
}

__global__ void __launch_bounds__(kThreads)
    take_importance(const float* upper, std::int64_t k, const std::int32_t* order, double* importance) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= k) return;
  const double diagonal = static_cast<double>(upper[c * k + c]);
  importance[order[c]] = 1.0 / (diagonal * diagonal);
}

__global__ void __launch_bounds__(kThreads) take_upper(const double* inverse, std::int64_t k, float* upper, std::int32_t* bad) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= k * k) return;
  const std::int64_t row = index / k, col = index % k;
  const double value = row <= col ? inverse[(k - 1 - row) * k + k - 1 - col] : 0.0;
  if (!isfinite(value)) *bad = 1;
  upper[index] = static_cast<float>(value);
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

int launch_diagonal(const double* moment, std::int64_t k, double* diagonal, Stream stream) {
  return launch_kernel(take_diagonal, blocks_for(k), kThreads, stream, moment, k, diagonal);
}

int launch_backwards(const double* moment, std::int64_t k, const std::int32_t* order, double unit, double damping, double* backwards,
                     Stream stream) {
  return launch_kernel(turn_backwards, blocks_for(k * k), kThreads, stream, moment, k, order, unit, damping, backwards);
}

int launch_take_upper(const double* inverse, std::int64_t k, float* upper, std::int32_t* bad, Stream stream) {
  return launch_kernel(take_upper, blocks_for(k * k), kThreads, stream, inverse, k, upper, bad);
}

int launch_damped(const double* moment, std::int64_t k, double unit, double damping, float* h, Stream stream) {
  return launch_kernel(damp, blocks_for(k * k), kThreads, stream, moment, k, unit, damping, h);
}

int launch_importance(const float* upper, std::int64_t k, const std::int32_t* order, double* importance, Stream stream) {
  return launch_kernel(take_importance, blocks_for(k), kThreads, stream, upper, k, order, importance);
}

}  // namespace narrow::cuda
