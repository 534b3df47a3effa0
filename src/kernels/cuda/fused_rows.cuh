#pragma once
/// Norms and activations with the quantization of what they give, reading every input once.
/// Mapping:  a group of 16 threads per 1024-column segment takes a row: thread i of a segment holds columns 32 j + 2 i and the next,
///           j = 0 .. 31, as fp32 in registers. So partial sum p of format/row_sum.h is one thread's chain of additions, a stripe of COL32
///           is one j, and a 1x128 block is 4 of them. One thread block per multiprocessor holds several groups, which share the
///           weights (fp32 in shared memory) and meet at named barriers; while a row is in registers, the next one is on its way into shared memory.
/// Requires: the shared memory of one multiprocessor (bf16: 18,000 columns of LayerNorm, 27,000 of RMSNorm) and at most 32 segments.
/// Bound:    memory; 2 + 1 B per element (bf16); about 12 (RMSNorm) to 16 (LayerNorm) instructions per element.
/// Meaning:  kernels/reference/fused.cc and kernels/reference/quantize.cc, bit for bit.

#include <type_traits>

#include "format/elementary.h"
#include "format/row_sum.h"
#include "format/scale_rule.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/fused.h"
#include "kernels/cuda/fused_encode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_after.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {

inline constexpr int kSegment = kSumSegment, kSegmentThreads = 16, kSteps = kSumLanes;
inline constexpr int kFusedThreads = 512, kMostGroups = 15, kMostSegments = 32;
inline constexpr int kExchange = 2 * kMostSegments * 8 + 4 * 32 * 4;  // bytes: two rounds of sums, four of maxima
static_assert(kSegment == kSteps * 2 * kSegmentThreads);

struct FusedArgs {
  FusedQuantizeProblem problem;
  int segments;  // even: a warp holds two
  int groups;    // per thread block
  bool x_aligned, other_aligned, codes_aligned;
  double inverse_columns;
  bool exact_inverse;  // the columns are a power of two
};

NARROW_HOST_DEVICE constexpr bool has_other(FusedOp op) { return op == FusedOp::kSiluMul || op == FusedOp::kAddRmsNorm; }
NARROW_HOST_DEVICE constexpr bool is_norm(FusedOp op) { return op == FusedOp::kLayerNorm || op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm; }
NARROW_HOST_DEVICE constexpr int size_of(DType dtype) { return is_16_bit(dtype) ? 2 : 4; }
/// Segments of 16-bit values lie 64 bytes apart modulo 128, so that the two of a warp are in different banks.
NARROW_HOST_DEVICE constexpr int segment_bytes(DType dtype) { return kSegment * size_of(dtype) + (is_16_bit(dtype) ? 64 : 0); }

/// Bytes of shared memory: weights, then per group the rows on their way and what its warps exchange.
inline std::size_t fused_rows_memory(FusedOp op, DType dtype, int segments, int groups) {
  const std::size_t vectors = (is_norm(op) ? 1u : 0u) + (op == FusedOp::kLayerNorm ? 1u : 0u);
  const std::size_t rows = (has_other(op) ? 2u : 1u) * static_cast<std::size_t>(segments * segment_bytes(dtype));
  return vectors * static_cast<std::size_t>(segments) * kSegment * 4u + static_cast<std::size_t>(groups) * (rows + kExchange);
}

__device__ inline void copy_16_bytes(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// One group of threads: its barrier, its part of shared memory, its place in the row.
template <FusedOp kOp, DType kType>
struct Group {
  const FusedArgs& args;
  unsigned char* stages;  // [inputs][segments]
  double* sums;           // [2][kMostSegments]
  float* maxima;          // [4][32]
  int barrier, threads, thread, segment, pair;  // pair: i, 0 .. 15

  static constexpr int kInputs = has_other(kOp) ? 2 : 1;

  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
  __device__ int columns() const { return static_cast<int>(args.problem.fused.cols); }
  __device__ int column(int step) const { return segment * kSegment + step * 32 + 2 * pair; }
  __device__ unsigned char* stage(int input) const { return stages + input * args.segments * segment_bytes(kType); }

  /// A warp loads the two segments that it reads itself: no other warp waits for them.
  __device__ void load_input(const void* data, std::int64_t offset, bool aligned, unsigned char* to) const {
    constexpr int kSize = size_of(kType), kPer16 = 16 / kSize;
    const int first = segment * kSegment;
    const char* from = static_cast<const char*>(data) + (offset + first) * kSize;
    unsigned char* mine = to + segment * segment_bytes(kType);
    if (aligned) {
      const std::uint32_t base = static_cast<std::uint32_t>(__cvta_generic_to_shared(mine)) + static_cast<std::uint32_t>(pair * 16);
      const int left = columns() - first - pair * kPer16;
#pragma unroll
      for (int k = 0; k < kSegment / kPer16 / kSegmentThreads; ++k)
        if (k * kSegmentThreads * kPer16 < left) copy_16_bytes(base + static_cast<std::uint32_t>(k * kSegmentThreads * 16), from + pair * 16 + k * kSegmentThreads * 16);
    } else {
      using Word = std::conditional_t<kSize == 2, std::uint16_t, std::uint32_t>;
      const int count = columns() - first < kSegment ? columns() - first : kSegment;
      for (int i = pair; i < count; i += kSegmentThreads) reinterpret_cast<Word*>(mine)[i] = reinterpret_cast<const Word*>(from)[i];
    }
  }

  /// Starts a row on its way, where there is one.
  __device__ void load(std::int64_t row) const {
    const FusedProblem& fused = args.problem.fused;
    if (row >= fused.rows) return;
    load_input(fused.x, row * fused.x_stride, args.x_aligned, stage(0));
    if constexpr (has_other(kOp)) load_input(fused.other, row * fused.other_stride, args.other_aligned, stage(1));
  }

  /// Zeros behind the last column: they add nothing to sums and maxima.
  __device__ void clear_padding() const {
    constexpr int kSize = size_of(kType), kGap = segment_bytes(kType) - kSegment * kSize;
    for (int input = 0; input < kInputs; ++input)
      for (int i = columns() + thread; i < args.segments * kSegment; i += threads) {
        unsigned char* at = stage(input) + i * kSize + i / kSegment * kGap;
        if constexpr (kSize == 2) *reinterpret_cast<std::uint16_t*>(at) = 0;
        else *reinterpret_cast<std::uint32_t*>(at) = 0;
      }
  }

  __device__ void read_pair(const unsigned char* from, int step, float& a, float& b) const {
    constexpr int kSize = size_of(kType);
    const unsigned char* at = from + segment * segment_bytes(kType) + (step * 32 + 2 * pair) * kSize;
    if constexpr (kType == DType::kF32) {
      const float2 v = *reinterpret_cast<const float2*>(at);
      a = v.x, b = v.y;
    } else {
      const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(at);
      if constexpr (kType == DType::kBf16) {
        a = __uint_as_float(word << 16), b = __uint_as_float(word & 0xFFFF0000u);
      } else {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&word));
        a = v.x, b = v.y;
      }
    }
  }

  /// The row's mean from each thread's two partial sums, in the order of row_sum.
  __device__ float row_mean(float a, float b, double* exchange) const {
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
      a = __fadd_rn(a, __shfl_xor_sync(0xFFFFFFFFu, a, half));
      b = __fadd_rn(b, __shfl_xor_sync(0xFFFFFFFFu, b, half));
    }
    if (pair == 0) exchange[segment] = static_cast<double>(__fadd_rn(a, b));
    sync();
    double total = 0.0;
    for (int i = 0; i < args.segments; i += 2) {
      const double2 two = *reinterpret_cast<const double2*>(exchange + i);
      total = __dadd_rn(__dadd_rn(total, two.x), two.y);
    }
    // mean_from_sum without its division: the quotient is within 2^-51 of the product, so where the product's neighbours round to
    // one fp32, the quotient does too.
    const double product = __dmul_rn(total, args.inverse_columns);
    if (args.exact_inverse) return __double2float_rn(product);
    const float low = __double2float_rn(__dmul_rn(product, 1.0 - 0x1p-50)), high = __double2float_rn(__dmul_rn(product, 1.0 + 0x1p-50));
    return low == high ? low : mean_from_sum(total, args.problem.fused.cols);
  }

  /// This thread's static scale: its row's, or that of block pair / 2 of its segment.
  __device__ float given_scale(std::int64_t row) const {
    const FusedQuantizeProblem& problem = args.problem;
    if (problem.given == nullptr) return 1.0f;
    const int block = problem.per_block ? segment * 8 + pair / 2 : 0;
    return block * 128 < columns() ? problem.given[row * problem.given_steps.row_step + block * problem.given_steps.block_step] : 1.0f;
  }

  /// The largest over the group.
  __device__ std::uint32_t group_max(std::uint32_t value, float* exchange) const {
    value = __reduce_max_sync(0xFFFFFFFFu, value);
    if (threads == 32) return value;
    if (threadIdx.x % 32 == 0) exchange[thread / 32] = __uint_as_float(value);
    sync();
    const int lane = static_cast<int>(threadIdx.x % 32);
    return __reduce_max_sync(0xFFFFFFFFu, lane < threads / 32 ? __float_as_uint(exchange[lane]) : 0u);
  }
};

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
      if constexpr (kType == DType::kF32) *reinterpret_cast<float2*>(to + column * 4) = make_float2(v[j][0], v[j][1]);
      else *reinterpret_cast<std::uint32_t*>(to + column * 2) = packed_pair<kType>(v[j][0], v[j][1]);
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
__device__ inline void produce(const Group<kOp, kType>& group, std::int64_t row, const float* weight, const float* bias, float (&v)[kSteps][2], int parity,
                               const Next& next) {
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

/// The magnitudes of the 8 blocks of a segment, spread over its threads: thread i gets that of block i / 2.
__device__ inline std::uint32_t spread_blocks(const std::uint32_t (&blocks)[8]) {
  const unsigned lane = threadIdx.x;
  std::uint32_t four[4], two[2];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const bool high = lane & 8u;
    four[k] = max(high ? blocks[k + 4] : blocks[k], __shfl_xor_sync(0xFFFFFFFFu, high ? blocks[k] : blocks[k + 4], 8));
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const bool high = lane & 4u;
    two[k] = max(high ? four[k + 2] : four[k], __shfl_xor_sync(0xFFFFFFFFu, high ? four[k] : four[k + 2], 4));
  }
  const bool high = lane & 2u;
  const std::uint32_t one = max(high ? two[1] : two[0], __shfl_xor_sync(0xFFFFFFFFu, high ? two[0] : two[1], 2));
  return max(one, __shfl_xor_sync(0xFFFFFFFFu, one, 1));
}

/// Magnitudes of v per block, as bits: NaN above infinity above all else.
__device__ inline void block_magnitudes(const float (&v)[kSteps][2], std::uint32_t (&blocks)[8]) {
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 4 * b; j < 4 * b + 4; ++j) largest = max_or_nan(max_or_nan(largest, v[j][0]), v[j][1]);
    blocks[b] = __float_as_uint(largest);
  }
}

/// NaN becomes the positive quiet one; magnitudes are taken over the finite values.
__device__ inline void clean(float (&v)[kSteps][2], std::uint32_t (&blocks)[8]) {
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    blocks[b] = 0;
#pragma unroll
    for (int j = 4 * b; j < 4 * b + 4; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (v[j][k] != v[j][k]) v[j][k] = __uint_as_float(0x7FC00000u);
        const std::uint32_t magnitude = __float_as_uint(v[j][k]) & 0x7FFFFFFFu;
        if (magnitude < 0x7F800000u) blocks[b] = max(blocks[b], magnitude);
      }
  }
}

enum class Way { kQuick, kCareful, kDefinition };

/// Codes in the place of values: v[j][0] holds two. Scales come from thread 2b of the segment for block b; kPerBlock = false: all are
/// the same.
template <bool kInt8, Way kWay, bool kPerBlock = true>
__device__ inline void encode_row(float (&v)[kSteps][2], float scale) {
  Divisor mine{};
  if constexpr (kWay == Way::kCareful) {
    mine = make_divisor(scale);
  } else if constexpr (kWay == Way::kQuick) {
    const float2 reciprocal = quick_reciprocal(scale);
    mine.high = reciprocal.x, mine.low = reciprocal.y;
  }
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    const int source = static_cast<int>(threadIdx.x & 16u) + 2 * b;
    Divisor divisor{};
    if constexpr (kWay == Way::kDefinition) {
      divisor.scale = __shfl_sync(0xFFFFFFFFu, scale, source);
    } else if constexpr (!kPerBlock) {
      divisor = mine;
    } else {
      divisor.high = __shfl_sync(0xFFFFFFFFu, mine.high, source);
      divisor.low = __shfl_sync(0xFFFFFFFFu, mine.low, source);
      if constexpr (kWay == Way::kCareful) {
        divisor.scale = __shfl_sync(0xFFFFFFFFu, mine.scale, source);
        divisor.nearest = __shfl_sync(0xFFFFFFFFu, mine.nearest, source);
      }
    }
#pragma unroll
    for (int j = 4 * b; j < 4 * b + 4; ++j) {
      std::uint32_t codes;
      if constexpr (kWay == Way::kDefinition) {
        constexpr Element kElement = kInt8 ? Element::kInt8 : Element::kE4m3;
        codes = encode_by_definition<kElement>(v[j][0], divisor.scale) | (encode_by_definition<kElement>(v[j][1], divisor.scale) << 8);
      } else if constexpr (kWay == Way::kCareful) {
        const float q0 = divide<DType::kF32>(v[j][0], divisor), q1 = divide<DType::kF32>(v[j][1], divisor);
        codes = kInt8 ? encode_two<kInt8>(clamp_to_int8(q0), clamp_to_int8(q1)) : encode_two<kInt8>(q0, q1);
      } else {
        codes = encode_two<kInt8>(quick_quotient(v[j][0], divisor.high, divisor.low), quick_quotient(v[j][1], divisor.high, divisor.low));
      }
      v[j][0] = __uint_as_float(codes);
    }
  }
}

template <FusedOp kOp, DType kType>
__device__ inline void store_row(const Group<kOp, kType>& group, std::int64_t row, const float (&v)[kSteps][2]) {
  const FusedQuantizeProblem& problem = group.args.problem;
  const int columns = group.columns();
  if (problem.col32) {  // whole stripes: codes of the padding are zero
    const std::int64_t stripes = (columns + 31) / 32, matrix = row / problem.matrix_rows, in_matrix = row - matrix * problem.matrix_rows;
    std::uint8_t* to = problem.codes + (matrix * stripes + group.segment * 32) * problem.matrix_rows * 32 + in_matrix * 32 + 2 * group.pair;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      if (group.segment * 32 + j < stripes) {
        const std::uint32_t codes = __float_as_uint(v[j][0]);
        if (group.args.codes_aligned) {
          *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(codes);
        } else {
          to[0] = static_cast<std::uint8_t>(codes), to[1] = static_cast<std::uint8_t>(codes >> 8);
        }
      }
      to += problem.matrix_rows * 32;
    }
    return;
  }
  std::uint8_t* to = problem.codes + row * problem.row_bytes;
  if (group.args.codes_aligned && (group.segment + 1) * kSegment <= columns) {
    to += group.column(0);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) *reinterpret_cast<std::uint16_t*>(to + 32 * j) = static_cast<std::uint16_t>(__float_as_uint(v[j][0]));
    return;
  }
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const std::uint32_t codes = __float_as_uint(v[j][0]);
    if (group.column(j) < columns) to[group.column(j)] = static_cast<std::uint8_t>(codes);
    if (group.column(j) + 1 < columns) to[group.column(j) + 1] = static_cast<std::uint8_t>(codes >> 8);
  }
}

__device__ inline float scale_of(std::uint32_t magnitude, bool int8) {
  const float amax = __uint_as_float(magnitude);
  if (amax == 0.0f) return 1.0f;
  const float scale = __fdiv_rn(amax, int8 ? 127.0f : 448.0f);
  return scale == 0.0f ? __uint_as_float(1u) : scale;
}

/// This thread's scale: its row's, or that of block pair / 2 of its segment. Stores it too.
template <FusedOp kOp, DType kType>
__device__ inline float make_scale(const Group<kOp, kType>& group, std::int64_t row, float (&v)[kSteps][2], float given, int parity, bool& finite) {
  const FusedQuantizeProblem& problem = group.args.problem;
  const bool int8 = problem.element == Element::kInt8;
  std::uint32_t blocks[8];
  block_magnitudes(v, blocks);
  std::uint32_t largest = blocks[0];
#pragma unroll
  for (int b = 1; b < 8; ++b) largest = max(largest, blocks[b]);
  const bool by_row = !problem.per_block && problem.given == nullptr;
  if (by_row) largest = group.group_max(largest, group.maxima + parity * 64);
  finite = by_row ? largest < 0x7F800000u : !__any_sync(0xFFFFFFFFu, largest >= 0x7F800000u);
  if (!finite) {
    clean(v, blocks);
    largest = blocks[0];
#pragma unroll
    for (int b = 1; b < 8; ++b) largest = max(largest, blocks[b]);
    if (by_row) largest = group.group_max(largest, group.maxima + parity * 64 + 32);
  }
  const int block = problem.per_block ? group.segment * 8 + group.pair / 2 : 0;
  // One scale for the tensor is stored once: rows that all write one address would wait for one another.
  const bool exists = problem.per_block ? block * 128 < group.columns() : group.thread == 0 && (row == 0 || problem.steps.row_step != 0);
  float scale;
  if (problem.given != nullptr) {
    scale = given;
  } else {
    scale = scale_of(problem.per_block ? spread_blocks(blocks) : largest, int8);
  }
  if (exists && (!problem.per_block || group.pair % 2 == 0)) {
    problem.scales[row * problem.steps.row_step + block * problem.steps.block_step] = scale;
    if (row == problem.fused.rows - 1)
      for (std::int64_t i = row + 1; i < problem.scale_rows; ++i) problem.scales[i * problem.steps.row_step + block * problem.steps.block_step] = 0.0f;
  }
  return scale;
}

template <bool kInt8>
__device__ inline void encode_row(float (&v)[kSteps][2], float scale, bool finite, bool given, bool per_block) {
  if (!finite || __any_sync(0xFFFFFFFFu, !is_plain_divisor(scale))) encode_row<kInt8, Way::kDefinition>(v, scale);
  else if ((given && kInt8) || __any_sync(0xFFFFFFFFu, !is_quick_divisor(scale))) encode_row<kInt8, Way::kCareful>(v, scale);
  else if (per_block) encode_row<kInt8, Way::kQuick>(v, scale);
  else encode_row<kInt8, Way::kQuick, false>(v, scale);
}

/// Where a column's weight lies in shared memory: the four values of two steps side by side, for one 16-byte read.
__device__ inline int vector_place(int column) {
  return column / 64 * 64 + column % 32 / 2 * 4 + column / 32 % 2 * 2 + column % 2;
}

/// A norm's weight or bias as fp32 in shared memory; a thread reads 8 values at a time.
template <DType kType>
__device__ inline void load_vector(const void* data, int columns, int padded, float fallback, float* to) {
  constexpr int kBatch = 8;
  for (int first = static_cast<int>(threadIdx.x); first < padded; first += kBatch * static_cast<int>(blockDim.x)) {
    float values[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * static_cast<int>(blockDim.x);
      values[k] = i >= columns ? 0.0f : (data == nullptr ? fallback : load_value(data, kType, i));
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * static_cast<int>(blockDim.x);
      if (i < padded) to[vector_place(i)] = values[k];
    }
  }
}

__device__ inline void load_vector(const void* data, DType dtype, int columns, int padded, float fallback, float* to) {
  if (dtype == DType::kF32) load_vector<DType::kF32>(data, columns, padded, fallback, to);
  else if (dtype == DType::kF16) load_vector<DType::kF16>(data, columns, padded, fallback, to);
  else load_vector<DType::kBf16>(data, columns, padded, fallback, to);
}

template <FusedOp kOp, DType kType>
__global__ void __launch_bounds__(kFusedThreads, 1) fused_rows(const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  wait_for_earlier_kernels();
  const FusedQuantizeProblem& problem = args.problem;
  const FusedProblem& fused = problem.fused;
  const int padded = args.segments * kSegment;
  float* weight = reinterpret_cast<float*>(memory);
  float* bias = weight + padded;
  unsigned char* rows = memory + (is_norm(kOp) ? padded * 4 : 0) + (kOp == FusedOp::kLayerNorm ? padded * 4 : 0);
  const int threads = args.segments * kSegmentThreads, index = static_cast<int>(threadIdx.x) / threads, thread = static_cast<int>(threadIdx.x) % threads;
  using Mine = Group<kOp, kType>;
  const int row_memory = Mine::kInputs * args.segments * segment_bytes(kType);
  unsigned char* stages = rows + index * (row_memory + kExchange);
  double* sums = reinterpret_cast<double*>(stages + row_memory);
  const Mine group{args, stages, sums, reinterpret_cast<float*>(sums + 2 * kMostSegments), index + 1, threads, thread, thread / kSegmentThreads, thread % kSegmentThreads};

  const std::int64_t step = std::int64_t{gridDim.x} * args.groups;
  std::int64_t row = std::int64_t{index} * gridDim.x + blockIdx.x;
  group.load(row);
  group.clear_padding();
  if constexpr (is_norm(kOp)) load_vector(fused.weight, fused.weight_dtype, group.columns(), padded, 1.0f, weight);
  if constexpr (kOp == FusedOp::kLayerNorm) load_vector(fused.bias, fused.weight_dtype, group.columns(), padded, 0.0f, bias);
  __syncthreads();

  for (int parity = 0; row < fused.rows; row += step, parity ^= 1) {
    const float given = group.given_scale(row);
    wait_for_copies();
    __syncwarp();
    float v[kSteps][2];
    produce<kOp, kType>(group, row, weight, bias, v, parity, [&] {
      __syncwarp();
      group.load(row + step);
    });
    bool finite;
    const float scale = make_scale(group, row, v, given, parity, finite);
    if (problem.element == Element::kInt8) encode_row<true>(v, scale, finite, problem.given != nullptr, problem.per_block);
    else encode_row<false>(v, scale, finite, problem.given != nullptr, problem.per_block);
    store_row(group, row, v);
  }
}

template <FusedOp kOp, DType kType>
int launch_fused_rows(const FusedQuantizeProblem& problem, Stream stream) {
  const int segments = static_cast<int>((problem.fused.cols + 2 * kSegment - 1) / (2 * kSegment)) * 2;
  const int threads = segments * kSegmentThreads;
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  int groups = kFusedThreads / threads < kMostGroups ? kFusedThreads / threads : kMostGroups;
  while (groups > 1 && fused_rows_memory(kOp, kType, segments, groups) > static_cast<std::size_t>(most)) --groups;
  const std::size_t memory = fused_rows_memory(kOp, kType, segments, groups);
  error = cudaFuncSetAttribute(fused_rows<kOp, kType>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(memory));
  if (error != cudaSuccess) return error;
  const auto rows_aligned = [](const void* data, std::int64_t stride, std::int64_t rows) {
    return is_aligned(data, 16) && (rows == 1 || stride * size_of(kType) % 16 == 0);
  };
  const std::int64_t cols = problem.fused.cols;
  const bool whole = cols * size_of(kType) % 16 == 0;
  const FusedArgs args{problem, segments, groups, whole && rows_aligned(problem.fused.x, problem.fused.x_stride, problem.fused.rows),
                       whole && rows_aligned(problem.fused.other, problem.fused.other_stride, problem.fused.rows),
                       is_aligned(problem.codes, 2) && (problem.col32 || problem.row_bytes % 2 == 0), 1.0 / static_cast<double>(cols), (cols & (cols - 1)) == 0};
  const std::int64_t wanted = (problem.fused.rows + groups - 1) / groups, blocks = multiprocessors();
  return launch_after(fused_rows<kOp, kType>, wanted < blocks ? wanted : blocks, threads * groups, memory, stream, args);
}

template <DType kType>
int launch_fused_rows_of(const FusedQuantizeProblem& problem, Stream stream) {
  switch (problem.fused.op) {
    case FusedOp::kIdentity: return launch_fused_rows<FusedOp::kIdentity, kType>(problem, stream);
    case FusedOp::kLayerNorm: return launch_fused_rows<FusedOp::kLayerNorm, kType>(problem, stream);
    case FusedOp::kRmsNorm: return launch_fused_rows<FusedOp::kRmsNorm, kType>(problem, stream);
    case FusedOp::kAddRmsNorm: return launch_fused_rows<FusedOp::kAddRmsNorm, kType>(problem, stream);
    case FusedOp::kSiluMul: return launch_fused_rows<FusedOp::kSiluMul, kType>(problem, stream);
    case FusedOp::kGelu: return launch_fused_rows<FusedOp::kGelu, kType>(problem, stream);
    case FusedOp::kGeluTanh: return launch_fused_rows<FusedOp::kGeluTanh, kType>(problem, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace narrow::cuda
