#pragma once
/// The group of threads that holds one row (fused_rows.cuh): how it loads the row, where its columns are, what its warps exchange.

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
NARROW_HOST_DEVICE constexpr bool is_norm(FusedOp op) {
  return op == FusedOp::kLayerNorm || op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm;
}
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
  unsigned char* stages;                        // [inputs][segments]
  double* sums;                                 // [2][kMostSegments]
  float* maxima;                                // [4][32]
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
        if (k * kSegmentThreads * kPer16 < left)
          copy_16_bytes(base + static_cast<std::uint32_t>(k * kSegmentThreads * 16), from + pair * 16 + k * kSegmentThreads * 16);
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
        if constexpr (kSize == 2)
          *reinterpret_cast<std::uint16_t*>(at) = 0;
        else
          *reinterpret_cast<std::uint32_t*>(at) = 0;
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

}  // namespace narrow::cuda
