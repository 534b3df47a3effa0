#pragma once
/// A segment of a row in shared memory, and the two orders in which its warp reads it (fused_rows.cuh):
///   chunks: lane l holds the 8 columns from 256 k + 8 l on, k = 0 .. 3. Loads, weights and codes are 8 or 16 bytes wide.
///   chains: a lane holds the 32 summands of one partial sum of format/row_sum.h, in order. Of 16-bit types ldmatrix transposes: matrix
///           m (8 x 8) gets as row 2 q + e the columns 8 q .. 8 q + 7 of step 2 m + e, and hands lane 4 g + q its column g of rows 2 q and
///           2 q + 1, that is steps 2 m and 2 m + 1 of partial sum 8 q + g.

#include <algorithm>
#include <utility>

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

inline constexpr int kSegment = kSumSegment, kSteps = kSumLanes, kMostSegments = 32, kChunks = 4;
static_assert(kSegment == kSteps * 32 && kSegment == kChunks * 256);

/// What a kernel may take for granted.
enum class Case {
  kToken,    ///< the next, codes in ROW, and a scale made for every row
  kWhole,    ///< the next, and whole segments
  kAligned,  ///< rows, weights (of x's type) and codes are aligned, chunks are whole
  kAny,
};
NARROW_HOST_DEVICE constexpr bool is_whole(Case kind) { return kind == Case::kToken || kind == Case::kWhole; }

struct FusedArgs {
  FusedQuantizeProblem problem;
  int segments;
  bool x_aligned, other_aligned, codes_aligned;
  double inverse_columns;
  bool exact_inverse;  // the columns are a power of two
};

NARROW_HOST_DEVICE constexpr bool is_norm(FusedOp op) {
  return op == FusedOp::kLayerNorm || op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm;
}
NARROW_HOST_DEVICE constexpr int size_of(DType dtype) { return is_16_bit(dtype) ? 2 : 4; }
NARROW_HOST_DEVICE constexpr int stage_bytes(DType dtype) { return kSegment * size_of(dtype); }

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Starts 16 bytes on their way; zeros where there are none.
__device__ inline void copy_or_clear(std::uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
/// The same of 16 bytes that are there, kOffset behind both addresses. kCached: by way of the first-level cache.
template <bool kCached, int kOffset>
__device__ inline void copy_16(std::uint32_t to, const void* from) {
  if constexpr (kCached)
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(from), "n"(kOffset) : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(from), "n"(kOffset) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// The warp starts a whole segment on its way into its stage.
template <DType kType, bool kCached>
__device__ inline void stage_whole(unsigned char* stage, const char* data) {
  constexpr int kPieces = kSegment * size_of(kType) / 16 / 32;
  const std::uint32_t to = shared_address(stage) + static_cast<std::uint32_t>(lane_id()) * 16u;
  const char* from = data + lane_id() * 16;
  const auto copy = [&]<int... kI>(std::integer_sequence<int, kI...>) { (copy_16<kCached, 512 * kI>(to, from), ...); };
  copy(std::make_integer_sequence<int, kPieces>{});
}

/// The two values of a word of a 16-bit type.
template <DType kType>
__device__ inline float2 two_values(std::uint32_t word) {
  if constexpr (kType == DType::kBf16) return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

template <DType kType>
__device__ inline void unpack(const uint4& words, float* v) {
  const std::uint32_t four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = two_values<kType>(four[i]);
    v[2 * i] = two.x, v[2 * i + 1] = two.y;
  }
}

/// Sums in the residual's type, rounded to it, saturating.
template <DType kType>
__device__ inline std::uint32_t add_words(std::uint32_t a, std::uint32_t b) {
  if constexpr (kType == DType::kF32) return __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(b)));
  const float2 x = two_values<kType>(a), y = two_values<kType>(b);
  return round_two<kType>(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y));
}

/// The warp starts `columns` elements (all that are left of the row) from `data` on their way into its stage; zeros follow them.
template <DType kType, Case kCase>
__device__ inline void stage_segment(unsigned char* stage, const char* data, int columns, bool aligned) {
  constexpr int kSize = size_of(kType), kPieces = kSegment * kSize / 16 / 32;
  if constexpr (is_whole(kCase)) {
    stage_whole<kType, false>(stage, data);
  } else if (kCase != Case::kAny || aligned) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = (32 * i + lane_id()) * 16;
      copy_or_clear(shared_address(stage) + static_cast<std::uint32_t>(at), data + at, at / kSize < columns);
    }
  } else {
    using Word = std::conditional_t<kSize == 2, std::uint16_t, std::uint32_t>;
#pragma unroll 1
    for (int i = lane_id(); i < kSegment; i += 32)
      reinterpret_cast<Word*>(stage)[i] = i < columns ? reinterpret_cast<const Word*>(data)[i] : Word{0};
  }
}

/// The same of a sum, which is the new residual too. other and residual may be one.
template <DType kType, Case kCase>
__device__ inline void stage_sum(unsigned char* stage, const char* data, const char* other, char* residual, int columns, bool aligned) {
  constexpr int kSize = size_of(kType), kPieces = kSegment * kSize / 16 / 32;
  if (kCase != Case::kAny || aligned) {
    uint4 x[kPieces], y[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = (32 * i + lane_id()) * 16;
      x[i] = y[i] = make_uint4(0, 0, 0, 0);
      if (is_whole(kCase) || at / kSize < columns) x[i] = load_words(data + at), y[i] = *reinterpret_cast<const uint4*>(other + at);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = (32 * i + lane_id()) * 16;
      const uint4 sum = make_uint4(add_words<kType>(x[i].x, y[i].x), add_words<kType>(x[i].y, y[i].y), add_words<kType>(x[i].z, y[i].z),
                                   add_words<kType>(x[i].w, y[i].w));
      *reinterpret_cast<uint4*>(stage + at) = sum;
      if (is_whole(kCase) || at / kSize < columns) *reinterpret_cast<uint4*>(residual + at) = sum;
    }
  } else {
    using Word = std::conditional_t<kSize == 2, std::uint16_t, std::uint32_t>;
#pragma unroll 1
    for (int i = lane_id(); i < kSegment; i += 32) {
      Word sum = 0;
      if (i < columns) {
        sum = static_cast<Word>(add_words<kType>(reinterpret_cast<const Word*>(data)[i], reinterpret_cast<const Word*>(other)[i]));
        reinterpret_cast<Word*>(residual)[i] = sum;
      }
      reinterpret_cast<Word*>(stage)[i] = sum;
    }
  }
}

/// Which partial sum this lane holds.
template <DType kType>
__device__ inline int chain_id() {
  return is_16_bit(kType) ? 8 * (lane_id() % 4) + lane_id() / 4 : lane_id();
}

/// The summands of this lane's partial sum: columns 32 j + chain_id().
template <DType kType>
__device__ inline void read_chain(const unsigned char* stage, float (&v)[kSteps]) {
  if constexpr (kType == DType::kF32) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) v[j] = reinterpret_cast<const float*>(stage)[32 * j + lane_id()];
  } else {
    const int lane = lane_id();  // names row lane % 8 of matrix lane / 8
    const std::uint32_t from = shared_address(stage) + static_cast<std::uint32_t>(lane / 8 * 128 + lane % 2 * 64 + lane % 8 / 2 * 16);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint4 words;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                   : "r"(from + static_cast<std::uint32_t>(512 * m))
                   : "memory");
      unpack<kType>(words, v + 8 * m);
    }
  }
}

/// The segment's sum from the lanes' partial sums: by halves of their numbers.
template <DType kType>
__device__ inline float fold_chains(float sum) {
  constexpr int kOrder[2][5] = {{16, 8, 4, 2, 1}, {2, 1, 16, 8, 4}};
#pragma unroll
  for (int i = 0; i < 5; ++i) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, kOrder[is_16_bit(kType) ? 1 : 0][i]));
  return sum;
}

/// Chunk k of the stage.
template <DType kType>
__device__ inline void read_chunk(const unsigned char* stage, int k, float (&v)[8]) {
  const unsigned char* at = stage + (256 * k + 8 * lane_id()) * size_of(kType);
  if constexpr (kType == DType::kF32) {
    const float4 low = *reinterpret_cast<const float4*>(at), high = *reinterpret_cast<const float4*>(at + 16);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    unpack<kType>(*reinterpret_cast<const uint4*>(at), v);
  }
}

/// One weight, 0 behind the last: for what is not aligned.
__device__ __noinline__ inline float weight_value(const void* data, DType dtype, int column, int columns) {
  return column < columns ? load_value(data, dtype, column) : 0.0f;
}

/// 8 values of a norm's weight or bias, from column first + 256 k on; zeros behind the last.
template <DType kType, Case kCase>
__device__ inline void read_weights(const FusedProblem& fused, const void* data, int first, int k, float fallback, float (&w)[8]) {
  const int columns = static_cast<int>(fused.cols), column = first + 256 * k;
  if constexpr (kCase == Case::kAny) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = data == nullptr ? fallback : weight_value(data, fused.weight_dtype, column + i, columns);
  } else if constexpr (kType == DType::kF32) {
    const float4* from = static_cast<const float4*>(data) + first / 4 + 64 * k;
    float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f), high = low;
    if (is_whole(kCase) || column < columns) low = __ldg(from), high = __ldg(from + 1);
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w, w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
  } else {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (is_whole(kCase) || column < columns) words = __ldg(static_cast<const uint4*>(data) + first / 8 + 32 * k);
    unpack<kType>(words, w);
  }
}

}  // namespace narrow::cuda
