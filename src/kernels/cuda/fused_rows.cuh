#pragma once
/// Norms and activations with the quantization of what they give, reading every input once.
/// Mapping:  a group of 16 threads per 1024-column segment takes a row: thread i of a segment holds columns 32 j + 2 i and the next,
///           j = 0 .. 31, as fp32 in registers. So partial sum p of format/row_sum.h is one thread's chain of additions, a stripe of COL32
///           is one j, and a 1x128 block is 4 of them. One thread block per multiprocessor holds several groups, which share the
///           weights (fp32 in shared memory) and meet at named barriers; while a row is in registers, the next one is on its way into
///           shared memory.
/// Requires: the shared memory of one multiprocessor (bf16: 22,528 columns of LayerNorm) and at most 32 segments.
/// Bound:    memory; 2 + 1 B per element (bf16); about 18 (RMSNorm) instructions per element, which is what limits it today.
/// Meaning:  kernels/reference/fused.cc and kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/fused_produce.cuh"

namespace narrow::cuda {

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
__device__ inline float make_scale(const Group<kOp, kType>& group, std::int64_t row, float (&v)[kSteps][2], float given, int parity,
                                   bool& finite) {
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
      for (std::int64_t i = row + 1; i < problem.scale_rows; ++i)
        problem.scales[i * problem.steps.row_step + block * problem.steps.block_step] = 0.0f;
  }
  return scale;
}

template <bool kInt8>
__device__ inline void encode_row(float (&v)[kSteps][2], float scale, bool finite, bool given, bool per_block) {
  if (!finite || __any_sync(0xFFFFFFFFu, !is_plain_divisor(scale)))
    encode_row<kInt8, Way::kDefinition>(v, scale);
  else if ((given && kInt8) || __any_sync(0xFFFFFFFFu, !is_quick_divisor(scale)))
    encode_row<kInt8, Way::kCareful>(v, scale);
  else if (per_block)
    encode_row<kInt8, Way::kQuick>(v, scale);
  else
    encode_row<kInt8, Way::kQuick, false>(v, scale);
}

/// Where a column's weight lies in shared memory: the four values of two steps side by side, for one 16-byte read.
__device__ inline int vector_place(int column) { return column / 64 * 64 + column % 32 / 2 * 4 + column / 32 % 2 * 2 + column % 2; }

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
  if (dtype == DType::kF32)
    load_vector<DType::kF32>(data, columns, padded, fallback, to);
  else if (dtype == DType::kF16)
    load_vector<DType::kF16>(data, columns, padded, fallback, to);
  else
    load_vector<DType::kBf16>(data, columns, padded, fallback, to);
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
  const int threads = args.segments * kSegmentThreads, index = static_cast<int>(threadIdx.x) / threads,
            thread = static_cast<int>(threadIdx.x) % threads;
  using Mine = Group<kOp, kType>;
  const int row_memory = Mine::kInputs * args.segments * segment_bytes(kType);
  unsigned char* stages = rows + index * (row_memory + kExchange);
  double* sums = reinterpret_cast<double*>(stages + row_memory);
  const Mine group{args,
                   stages,
                   sums,
                   reinterpret_cast<float*>(sums + 2 * kMostSegments),
                   index + 1,
                   threads,
                   thread,
                   thread / kSegmentThreads,
                   thread % kSegmentThreads};

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
    if (problem.element == Element::kInt8)
      encode_row<true>(v, scale, finite, problem.given != nullptr, problem.per_block);
    else
      encode_row<false>(v, scale, finite, problem.given != nullptr, problem.per_block);
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
  const FusedArgs args{problem,
                       segments,
                       groups,
                       whole && rows_aligned(problem.fused.x, problem.fused.x_stride, problem.fused.rows),
                       whole && rows_aligned(problem.fused.other, problem.fused.other_stride, problem.fused.rows),
                       is_aligned(problem.codes, 2) && (problem.col32 || problem.row_bytes % 2 == 0),
                       1.0 / static_cast<double>(cols),
                       (cols & (cols - 1)) == 0};
  const std::int64_t wanted = (problem.fused.rows + groups - 1) / groups, blocks = multiprocessors();
  return launch_after(fused_rows<kOp, kType>, wanted < blocks ? wanted : blocks, threads * groups, memory, stream, args);
}

template <DType kType>
int launch_fused_rows_of(const FusedQuantizeProblem& problem, Stream stream) {
  switch (problem.fused.op) {
    case FusedOp::kIdentity:
      return launch_fused_rows<FusedOp::kIdentity, kType>(problem, stream);
    case FusedOp::kLayerNorm:
      return launch_fused_rows<FusedOp::kLayerNorm, kType>(problem, stream);
    case FusedOp::kRmsNorm:
      return launch_fused_rows<FusedOp::kRmsNorm, kType>(problem, stream);
    case FusedOp::kAddRmsNorm:
      return launch_fused_rows<FusedOp::kAddRmsNorm, kType>(problem, stream);
    case FusedOp::kSiluMul:
      return launch_fused_rows<FusedOp::kSiluMul, kType>(problem, stream);
    case FusedOp::kGelu:
      return launch_fused_rows<FusedOp::kGelu, kType>(problem, stream);
    case FusedOp::kGeluTanh:
      return launch_fused_rows<FusedOp::kGeluTanh, kType>(problem, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace narrow::cuda
