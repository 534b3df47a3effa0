#pragma once
/// What products with prepared weights do with a finished sum, and single codes of a prepared weight.

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {

/// Bias, activation, multiplier and residual of one sum; those that there are.
__device__ inline float finish(const WeightEpilogue& e, float v, float bias, float multiplier, float residual) {
  if (e.bias != nullptr) v += bias;
  v = activate(e.activation, v);
  if (e.multiplier != nullptr) v *= multiplier;
  if (e.residual != nullptr) v += residual;
  return v;
}
__device__ inline void store_finished(const WeightEpilogue& e, float v, std::int64_t at, void* y) {
  if (e.out == DType::kF32)
    static_cast<float*>(y)[at] = v;
  else if (e.out == DType::kF16)
    static_cast<__half*>(y)[at] = __float2half_rn(clamp_half(v));
  else
    static_cast<__nv_bfloat16*>(y)[at] = __float2bfloat16_rn(v);
}
/// All of it for one value of y [m, n].
__device__ inline void finish_and_store(const WeightEpilogue& e, float v, int row, int column, int n, void* y, std::int64_t y_pitch) {
  const std::int64_t dense = std::int64_t{row} * n + column;
  const float bias = e.bias != nullptr ? __ldg(e.bias + column) : 0.0f;
  const float multiplier = e.multiplier != nullptr ? load_value(e.multiplier, e.multiplier_type, dense) : 0.0f;
  const float residual = e.residual != nullptr ? load_value(e.residual, e.residual_type, dense) : 0.0f;
  store_finished(e, finish(e, v, bias, multiplier, residual), row * y_pitch + column, y);
}

/// The code that chunks hold for a code of the scheme's element, and back. Signed integers become offset binary; int1's -1 and 1 become
/// those of two bits; the sign of a float stored in more bits than it has moves to the top.
__device__ inline std::uint32_t to_stored(const WeightLayoutInfo& layout, const Format& element, std::uint32_t code) {
  if (layout.kind == WeightKind::kDense) return code;
  if (layout.kind == WeightKind::kFloat) {
    const std::uint32_t magnitude = code & ((1u << (element.bits - 1)) - 1u);
    return magnitude | (code >> (element.bits - 1)) << (layout.bits - 1);
  }
  if (element.kind == FormatKind::kCodebook) return 2 * code + 1;
  return element.is_signed ? code ^ (1u << (layout.bits - 1)) : code;
}
__device__ inline std::uint32_t from_stored(const WeightLayoutInfo& layout, const Format& element, std::uint32_t stored) {
  if (layout.kind == WeightKind::kDense) return stored;
  if (layout.kind == WeightKind::kFloat) {
    const std::uint32_t magnitude = stored & ((1u << (element.bits - 1)) - 1u);
    return magnitude | (stored >> (layout.bits - 1)) << (element.bits - 1);
  }
  if (element.kind == FormatKind::kCodebook) return stored / 2;
  return element.is_signed ? stored ^ (1u << (layout.bits - 1)) : stored;
}

/// Scale number `at` of a chunk.
__device__ inline float stored_scale(const WeightLayoutInfo& layout, const std::uint8_t* chunk, int at) {
  const std::uint8_t* scales = chunk + layout.code_bytes();
  if (layout.scale == ChunkScale::kFloat) return reinterpret_cast<const float*>(scales)[at];
  return __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(scales)[at]) << 16);
}

/// The stored code at (row, column) of a prepared weight.
__device__ inline std::uint32_t stored_code(const WeightLayoutInfo& layout, const Placement& placement, const std::uint8_t* chunks, int row,
                                            int column) {
  const std::int64_t chunk = std::int64_t{row / kChunkRows} * layout.depth_chunks + column / kChunkDepth;
  const int r = row % 16, k = column % 16, half = column % kChunkDepth / 64;
  const int pair = column % 64 / 16 * 4 + r / 8 + k / 8 * 2, lane = r % 8 * 4 + k % 8 / 2, warp = row % kChunkRows / 16;
  const std::uint8_t* at = chunks + chunk * layout.chunk_bytes();
  const auto word = [&](int w) {
    return *reinterpret_cast<const std::uint32_t*>(at + word_offset(layout.bits, warp, lane, half * layout.bits + w)) >> (k % 2 * 16);
  };
  if (layout.kind == WeightKind::kDense) return word(pair) & 0xFFFFu;
  std::uint32_t code = 0;
  for (int i = 0; i < layout.bits; ++i) code |= (word(placement.word[pair][i]) >> placement.bit[pair][i] & 1u) << i;
  return code;
}

}  // namespace narrow::cuda
