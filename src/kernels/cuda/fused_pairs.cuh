#pragma once
/// LayerNorm of 16-bit rows with one scale per row: pairs of rows, in the order of the sums from the load to the codes.
/// Mapping:  a thread block takes pairs of rows one after the other, a warp a segment of both. A lane holds the 32 summands of one partial
///           sum of each row (fused_stage.cuh) and keeps them: as x, as x - mean, as y. Weight and bias stay in shared memory, where the
///           lanes read them in the same order, and are unpacked once for two rows; what a row needs once (mean, factor, scale) half of
///           the lanes compute for either row. The codes change their order through shared memory. The next pair is on its way as soon
///           as this one is in registers. The thread blocks are as many as the machine holds at once.
/// Requires: compute capability 9.0; whole segments, 16 at most; rows, weight, bias and codes at multiples of 16 bytes; x's type for all.
/// Bound:    issue slots: 15.5 instructions per element of bf16, of which the definition asks for 11.
/// Meaning:  kernels/reference/fused.cc and kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/fused_produce.cuh"
#include "kernels/cuda/prefetch.cuh"

namespace narrow::cuda {

inline constexpr int kPairRegisters = 128, kPairSegments = 65536 / 32 / kPairRegisters;
/// Of a warp: two rows, weight, bias, and the codes of two rows.
inline constexpr int kPairStage = 2 * kSegment, kPairCodes = 4 * kPairStage, kPairBytes = kPairCodes + 2 * kSegment;

/// Steps 8 m to 8 m + 7 of this lane's partial sum.
template <DType kType>
__device__ inline void read_steps(std::uint32_t from, int m, float (&v)[8]) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(from + static_cast<std::uint32_t>(512 * m))
               : "memory");
  unpack<kType>(words, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(v[i]));  // else the compiler unpacks again rather than keep them
}

/// Which of the two rows this lane computes single values for.
__device__ inline int row_of_lane() { return lane_id() / 2 % 2; }
__device__ inline void spread_pair(float mine, float (&both)[2]) {
  both[0] = __shfl_sync(0xFFFFFFFFu, mine, 0), both[1] = __shfl_sync(0xFFFFFFFFu, mine, 2);
}

/// fold_chains of two rows: lanes get the sum of their row.
__device__ inline float fold_pair(const float (&sums)[2]) {
  const bool second = row_of_lane() == 1;
  float sum = __fadd_rn(second ? sums[1] : sums[0], __shfl_xor_sync(0xFFFFFFFFu, second ? sums[0] : sums[1], 2));
#pragma unroll
  for (const int step : {1, 16, 8, 4}) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, step));
  return sum;
}

/// y of one column, from memory: for rows that take the way of the definition.
template <DType kType>
__device__ inline float value_again(const FusedArgs& args, std::int64_t row, int column, float mean, float factor) {
  const FusedProblem& fused = args.problem.fused;
  const float x = load_value(fused.x, kType, row * fused.x_stride + column);
  const float y =
      __fmaf_rn(__fmul_rn(__fadd_rn(x, -mean), factor), load_value(fused.weight, kType, column), load_value(fused.bias, kType, column));
  return y != y ? __uint_as_float(0x7FC00000u) : y;
}

/// The largest finite magnitude of a lane's columns of a segment.
template <DType kType>
__device__ __noinline__ std::uint32_t largest_finite(const FusedArgs& args, std::int64_t row, int first, float mean, float factor) {
  std::uint32_t largest = 0;
#pragma unroll 1
  for (int column = first + lane_id(); column < first + kSegment; column += 32) {
    const std::uint32_t magnitude = __float_as_uint(value_again<kType>(args, row, column, mean, factor)) & 0x7FFFFFFFu;
    if (magnitude < 0x7F800000u) largest = max(largest, magnitude);
  }
  return largest;
}

/// The codes of a segment by the definition.
template <DType kType, Element kElement>
__device__ __noinline__ void encode_again(const FusedArgs& args, std::int64_t row, int first, float mean, float factor, float scale) {
#pragma unroll 1
  for (int column = first + lane_id(); column < first + kSegment; column += 32)
    args.problem.codes[row * args.problem.row_bytes + column] =
        static_cast<std::uint8_t>(encode_by_definition<kElement>(value_again<kType>(args, row, column, mean, factor), scale));
}

/// The codes of two rows with plain scales; lanes hold the scale of their row.
template <bool kInt8>
__device__ inline void encode_pair(const float (&y)[2][4][8], float mine, std::uint32_t (&codes)[2][8]) {
  constexpr Element kElement = kInt8 ? Element::kInt8 : Element::kE4m3;
  const auto encode = [&](const auto& quotient) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        float q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = quotient(r, y[r][m][i]);
        const Codes packed = encode_quotients<kElement, 8, false>(q);
        codes[r][2 * m] = packed.low, codes[r][2 * m + 1] = packed.high;
      }
  };
  if (!__any_sync(0xFFFFFFFFu, !is_tie_free(mine))) {
    const float2 reciprocal = quick_reciprocal(mine);
    float high[2], low[2];
    spread_pair(reciprocal.x, high);
    spread_pair(reciprocal.y, low);
    encode([&](int r, float value) { return quick_quotient(value, high[r], low[r]); });
  } else {
    float scales[2];
    spread_pair(mine, scales);
    const Divisor divisors[2] = {make_divisor(scales[0]), make_divisor(scales[1])};
    encode([&](int r, float value) {
      const float q = divide<DType::kF32>(value, divisors[r]);
      return kInt8 ? clamp_to_int8(q) : q;
    });
  }
}

template <DType kType, bool kInt8>
__global__ void __maxnreg__(kPairRegisters) fused_pairs(const __grid_constant__ FusedArgs args, int rows_per_block) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Exchange<2> exchange;
  const FusedQuantizeProblem& problem = args.problem;
  const FusedProblem& fused = problem.fused;
  const int segment = static_cast<int>(threadIdx.x / 32), first = segment * kSegment, lane = lane_id(), my_row = row_of_lane();
  unsigned char* stage = memory + segment * kPairBytes;
  // ldmatrix and stmatrix: where this lane's row of matrix lane / 8 lies (fused_stage.cuh).
  const std::uint32_t from = shared_address(stage) + static_cast<std::uint32_t>(lane / 8 * 128 + lane % 2 * 64 + lane % 8 / 2 * 16);
  const std::int64_t begin = std::int64_t{blockIdx.x} * rows_per_block, stride = fused.x_stride * 2;
  int left = static_cast<int>(min(fused.rows - begin, std::int64_t{rows_per_block}));
  const char* x = static_cast<const char*>(fused.x) + begin * stride + first * 2;
  std::uint8_t* codes_to = problem.codes + begin * problem.row_bytes + first + lane * 16;
  float* scales_to = problem.scales + begin * problem.steps.row_step;
  prefetch_lines(lane < 16 || left == 1 ? x : x + stride, kPairStage, lane % 16, 16);
  wait_for_earlier_kernels();

  const auto stage_pair = [&] {
    stage_whole<kType, false>(stage, x);
    stage_whole<kType, false>(stage + kPairStage, left > 1 ? x + stride : x);  // a row that is not there repeats the one before
    x += 2 * stride;
  };
  stage_pair();
  stage_whole<kType, false>(stage + 2 * kPairStage, static_cast<const char*>(fused.weight) + first * 2);
  stage_whole<kType, false>(stage + 3 * kPairStage, static_cast<const char*>(fused.bias) + first * 2);
  clear_sums(args, exchange);

#pragma unroll 1
  for (int done = 0;; done += 2) {
    wait_for_copies();
    __syncwarp();
    float v[2][4][8];
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) read_steps<kType>(from + r * kPairStage, m, v[r][m]);
    __syncwarp();
    const bool both = left > 1;
    left -= 2;
    if (left > 0) stage_pair();

    float sums[2] = {}, mean[2], factor[2];
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[r] = __fadd_rn(sums[r], v[r][j / 8][j % 8]);
    const float sum = fold_pair(sums);
    if ((lane & ~2) == 0) exchange.sums[1][my_row][segment] = static_cast<double>(sum);
    __syncthreads();
    spread_pair(row_mean(args, exchange.sums[1][my_row]), mean);

    float squares[2] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& d = v[r][j / 8][j % 8];
        d = __fadd_rn(d, -mean[r]);
        asm volatile("" : "+f"(d));  // as in read_steps
        squares[r] = __fmaf_rn(d, d, squares[r]);
      }
    const float square = fold_pair(squares);
    if ((lane & ~2) == 0) exchange.sums[0][my_row][segment] = static_cast<double>(square);
    __syncthreads();
    spread_pair(__fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(row_mean(args, exchange.sums[0][my_row]), fused.epsilon))), factor);

    float largest_value[2] = {};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float weight[8], bias[8];
      read_steps<kType>(from + 2 * kPairStage, m, weight);
      read_steps<kType>(from + 3 * kPairStage, m, bias);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          v[r][m][i] = __fmaf_rn(__fmul_rn(v[r][m][i], factor[r]), weight[i], bias[i]);
          largest_value[r] = max_or_nan(largest_value[r], v[r][m][i]);
        }
    }
    std::uint32_t largest[2] = {__float_as_uint(largest_value[0]), __float_as_uint(largest_value[1])};
    block_largest(largest, args, segment, exchange.maxima);
    const bool finite = max(largest[0], largest[1]) < 0x7F800000u;
    if (!finite) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint32_t again[1] = {largest_finite<kType>(args, begin + done + (both ? r : 0), first, mean[r], factor[r])};
        block_largest(again, args, segment, exchange.finite[r]);
        largest[r] = again[0];
      }
    }
    const float scale = scale_of<kInt8>(my_row == 0 ? largest[0] : largest[1]);
    if (threadIdx.x < 4 && lane % 2 == 0 && (both || lane == 0)) scales_to[my_row * problem.steps.row_step] = scale;
    if (!finite || __any_sync(0xFFFFFFFFu, !is_plain_divisor(scale))) {
      float scales[2];
      spread_pair(scale, scales);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (r == 0 || both)
          encode_again<kType, kInt8 ? Element::kInt8 : Element::kE4m3>(args, begin + done + r, first, mean[r], factor[r], scales[r]);
    } else {
      std::uint32_t codes[2][8];
      encode_pair<kInt8>(v, scale, codes);
      // A word has four steps of one partial sum. stmatrix leaves 64 bytes for every two steps: the two codes of partial sum 0, of 1, ...
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                           from + static_cast<std::uint32_t>(kPairCodes + kSegment * r + 512 * h)),
                       "r"(codes[r][4 * h]), "r"(codes[r][4 * h + 1]), "r"(codes[r][4 * h + 2]), "r"(codes[r][4 * h + 3])
                       : "memory");
      __syncwarp();
      // Of those 64 bytes lanes 4 i .. 4 i + 3 make two runs of 32 columns.
      const unsigned char* pieces = stage + kPairCodes + lane / 4 * 64 + lane % 2 * 32;
      const unsigned pick = lane & 2 ? 0x7531u : 0x6420u;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (r > 0 && !both) break;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 low = *reinterpret_cast<const uint4*>(pieces + kSegment * r + 512 * h),
                      high = *reinterpret_cast<const uint4*>(pieces + kSegment * r + 512 * h + 16);
          *reinterpret_cast<uint4*>(codes_to + r * problem.row_bytes + 512 * h) =
              make_uint4(__byte_perm(low.x, low.y, pick), __byte_perm(low.z, low.w, pick), __byte_perm(high.x, high.y, pick),
                         __byte_perm(high.z, high.w, pick));
        }
      }
    }
    if (left <= 0) break;
    codes_to += 2 * problem.row_bytes;
    scales_to += 2 * problem.steps.row_step;
  }
#endif
}

inline bool accepts_pairs(const FusedQuantizeProblem& problem, int segments) {
  if (segments > kPairSegments || problem.col32 || problem.per_block || problem.given != nullptr) return false;
  return is_aligned(problem.codes, 16) && problem.row_bytes % 16 == 0 && device_attribute(cudaDevAttrComputeCapabilityMajor, 0) >= 9;
}

template <DType kType, bool kInt8>
int launch_pairs(const FusedArgs& args, Stream stream) {
  const auto kernel = fused_pairs<kType, kInt8>;
  const int threads = args.segments * 32;
  const std::size_t memory = static_cast<std::size_t>(args.segments) * kPairBytes;
  int blocks_at_once = 0;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(memory));
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_at_once, kernel, threads, memory);
  if (error != cudaSuccess) return error;
  const std::int64_t rows = args.problem.fused.rows, blocks = std::int64_t{std::max(blocks_at_once, 1)} * multiprocessors();
  // A thread block's rows are counted in an int, and no more than its pointers reach.
  const std::int64_t pairs = std::clamp(((rows + 1) / 2 + blocks - 1) / blocks, std::int64_t{1}, std::int64_t{1} << 20);
  return launch_after(kernel, (rows + 2 * pairs - 1) / (2 * pairs), threads, memory, stream, args, static_cast<int>(2 * pairs));
}

}  // namespace narrow::cuda
