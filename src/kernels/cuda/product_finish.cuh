#pragma once
/// The end of a product as the CPU has it: bias, activation, residual, conversion.

#include "kernels/cuda/byte_finish.cuh"

namespace narrow::cuda {

/// What becomes of a scaled sum before its conversion; the rectifier keeps -0 and NaN, as the CPU's does.
__device__ inline float finished_product(const ByteEpilogue& e, float v, int row, int column, int n) {
  if (e.bias != nullptr) v = __fadd_rn(v, __ldg(e.bias + column));
  v = e.activation == Activation::kRelu ? (v < 0.0f ? 0.0f : v) : activate(e.activation, v);
  if (e.residual != nullptr) v = __fadd_rn(v, load_value(e.residual, e.residual_type, std::int64_t{row} * n + column));
  return v;
}

/// A scaled sum to its place `at` in D [m, n].
__device__ inline void finish_product(const ByteEpilogue& e, void* d, float v, int row, int column, int n, std::int64_t at) {
  store_converted(e, d, finished_product(e, v, row, column, n), at);
}

}  // namespace narrow::cuda
