#pragma once
/// From a row's inputs to the fp32 values that are quantized: norms and activations in registers (fused_rows.cuh).

#include "kernels/cuda/fused_group.cuh"

namespace narrow::cuda {

/// Sums of two values of the residual's type, rounded to it, saturating.
template <DType kType>
__device__ inline void add_residual(float& a, float& b, float other_a, float other_b) {
  a = __fadd_rn(a, other_a), b = __fadd_rn(b, other_b);
  if constexpr (is_16_bit(kType)) {
    const std::uint32_t word = round_two<kType>(a, b);
    if constexpr (kType == DType::kBf16) {
      a = __uint_as_float(word << 16), b = __uint_as_float(word & 0xFFFF0000u);
    } else {
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&word));
      a = v.x, b = v.y;
    }
  }
}

template <DType kType>
__device__ inline std::uint32_t packed_pair(float a, float b) {
  if constexpr (kType == DType::kBf16) {
    return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632);  // exact: both are bf16 values
  } else {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

/// The new residual, from the registers that hold it.
template <FusedOp kOp, DType kType>
__device__ inline void store_residual(const Group<kOp, kType>& group, std::int64_t row, const float (&v)[kSteps][2]) {
  const FusedProblem& fused = group.args.problem.fused;
  char* to = static_cast<char*>(fused.residual) + row * fused.other_stride * size_of(kType);
  const bool whole = group.args.other_aligned && (group.segment + 1) * kSegment <= group.columns();
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const int column = group.column(j);
    if (whole) {
      if constexpr (kType == DType::kF32)
        *reinterpret_cast<float2*>(to + column * 4) = make_float2(v[j][0], v[j][1]);
      else
        *reinterpret_cast<std::uint32_t*>(to + column * 2) = packed_pair<kType>(v[j][0], v[j][1]);
    } else {
      if (column < group.columns()) store_value(to, kType, column, v[j][0], Overflow::kIeee);
      if (column + 1 < group.columns()) store_value(to, kType, column + 1, v[j][1], Overflow::kIeee);
    }
  }
}

/// One norm's factor 1 / sqrt(mean + epsilon).
__device__ inline float norm_factor(float mean, float epsilon) { return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, epsilon))); }

/// v: the row's inputs become y. `next` is called once the warp's part of the row is out of shared memory. What warps exchange goes
/// to places that alternate with `parity`, so that a warp can be one barrier ahead of another.
template <FusedOp kOp, DType kType, typename Next>
__device__ inline void produce(const Group<kOp, kType>& group, std::int64_t row, const float* weight, const float* bias,
                               float (&v)[kSteps][2], int parity, const Next& next) {
  const FusedProblem& fused = group.args.problem.fused;
  const unsigned char* in = group.stage(0);
#pragma unroll
  for (int j = 0; j < kSteps; ++j) group.read_pair(in, j, v[j][0], v[j][1]);
  if constexpr (has_other(kOp)) {
    const unsigned char* other = group.stage(1);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float a, b;
      group.read_pair(other, j, a, b);
      if constexpr (kOp == FusedOp::kSiluMul) {
        v[j][0] = __fmul_rn(silu_f32(v[j][0]), a);
        v[j][1] = __fmul_rn(silu_f32(v[j][1]), b);
      } else {
        add_residual<kType>(v[j][0], v[j][1], a, b);
      }
    }
  }
  next();
  if constexpr (!is_norm(kOp)) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if constexpr (kOp == FusedOp::kGelu) v[j][k] = gelu_f32(v[j][k]);
        if constexpr (kOp == FusedOp::kGeluTanh) v[j][k] = gelu_tanh_f32(v[j][k]);
      }
    return;
  } else {
    float a = 0.0f, b = 0.0f;
    if constexpr (kOp == FusedOp::kLayerNorm) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) a = __fadd_rn(a, v[j][0]), b = __fadd_rn(b, v[j][1]);
      const float mean = group.row_mean(a, b, group.sums);
      a = 0.0f, b = 0.0f;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) v[j][0] = __fadd_rn(v[j][0], -mean), v[j][1] = __fadd_rn(v[j][1], -mean);
      if ((group.segment | 1) * kSegment + kSegment > group.columns()) {  // the warp's columns end here
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          if (group.column(j) >= group.columns()) v[j][0] = 0.0f;
          if (group.column(j) + 1 >= group.columns()) v[j][1] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) a = __fadd_rn(a, __fmul_rn(v[j][0], v[j][0])), b = __fadd_rn(b, __fmul_rn(v[j][1], v[j][1]));
    const float mean = group.row_mean(a, b, group.sums + (kOp == FusedOp::kLayerNorm || parity != 0 ? kMostSegments : 0));
    if constexpr (kOp == FusedOp::kAddRmsNorm) store_residual(group, row, v);
    const float factor = norm_factor(mean, fused.epsilon);
    const int first = group.segment * kSegment + 4 * group.pair;
#pragma unroll
    for (int j = 0; j < kSteps; j += 2) {
      const float4 w = *reinterpret_cast<const float4*>(weight + first + 32 * j);
      v[j][0] = __fmul_rn(__fmul_rn(v[j][0], factor), w.x), v[j][1] = __fmul_rn(__fmul_rn(v[j][1], factor), w.y);
      v[j + 1][0] = __fmul_rn(__fmul_rn(v[j + 1][0], factor), w.z), v[j + 1][1] = __fmul_rn(__fmul_rn(v[j + 1][1], factor), w.w);
      if constexpr (kOp == FusedOp::kLayerNorm) {
        const float4 add = *reinterpret_cast<const float4*>(bias + first + 32 * j);
        v[j][0] = __fadd_rn(v[j][0], add.x), v[j][1] = __fadd_rn(v[j][1], add.y);
        v[j + 1][0] = __fadd_rn(v[j + 1][0], add.z), v[j + 1][1] = __fadd_rn(v[j + 1][1], add.w);
      }
    }
  }
}

}  // namespace narrow::cuda
