#pragma once
/// Norms and activations with the quantization of what they give, reading every input once.
/// Mapping:  a thread block per row, of LayerNorm per two (which share the unpacking of weights); a warp per segment of 1024 columns.
///           Inputs go to shared memory as they are; a warp reads its own part there in the two orders of fused_stage.cuh and keeps the
///           32 values of a lane in registers until their codes are known. Barriers: one per sum, one for the row's maximum.
/// Requires: at most 32 segments (LayerNorm 25), and the shared memory of one multiprocessor.
/// Bound:    memory; 2 + 1 B per element (bf16); of LayerNorm the issue slots: 21 instructions per element.
/// Meaning:  kernels/reference/fused.cc and kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/fused_pairs.cuh"
#include "kernels/cuda/fused_produce.cuh"
#include "kernels/cuda/prefetch.cuh"

namespace narrow::cuda {

/// Rows of a thread block. The rows of LayerNorm share the unpacking of weights.
NARROW_HOST_DEVICE constexpr int rows_of(FusedOp op) { return op == FusedOp::kLayerNorm ? 2 : 1; }
/// At most so many segments are a short row.
inline constexpr int kShortRow = 4;
/// Whether weights come through shared memory too, where they are there as soon as x is.
NARROW_HOST_DEVICE constexpr bool stages_weights(FusedOp op, Case kind, bool is_short) {
  return op == FusedOp::kRmsNorm && kind == Case::kToken && is_short;
}
/// Registers of a thread: few, since warps hide each other's waiting.
NARROW_HOST_DEVICE constexpr int registers_of(FusedOp op, Case kind) {
  if (op == FusedOp::kLayerNorm) return 80;
  return is_norm(op) ? (kind == Case::kToken ? 48 : 56) : 64;
}
NARROW_HOST_DEVICE constexpr int inputs_of(FusedOp op) { return op == FusedOp::kSiluMul ? 2 : 1; }

/// The largest magnitude of a chunk as bits: NaN above infinity above all else.
__device__ inline std::uint32_t chunk_largest(const float (&v)[8]) {
  float largest = max_or_nan(v[0], v[1]);
#pragma unroll
  for (int i = 2; i < 8; ++i) largest = max_or_nan(largest, v[i]);
  return __float_as_uint(largest);
}

/// NaN becomes the positive quiet one; the result is the largest finite magnitude.
__device__ inline std::uint32_t clean(float (&v)[8]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (v[i] != v[i]) v[i] = __uint_as_float(0x7FC00000u);
    const std::uint32_t magnitude = __float_as_uint(v[i]) & 0x7FFFFFFFu;
    if (magnitude < 0x7F800000u) largest = max(largest, magnitude);
  }
  return largest;
}

/// A 1x128 block is a chunk of half a warp. This lane's block in its segment: of chunk lane / 4 % 4.
__device__ inline int block_of_lane() { return lane_id() / 4 % 4 * 2 + lane_id() / 16; }
__device__ inline int lane_of_chunk(int k) { return (lane_id() & 16) + 4 * k; }

/// The largest of this lane's block from all lanes' chunks.
__device__ inline std::uint32_t spread_blocks(const std::uint32_t (&chunks)[kChunks]) {
  const bool high = lane_id() & 8, odd = lane_id() & 4;
  std::uint32_t two[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    two[k] = max(high ? chunks[k + 2] : chunks[k], __shfl_xor_sync(0xFFFFFFFFu, high ? chunks[k] : chunks[k + 2], 8));
  std::uint32_t one = max(odd ? two[1] : two[0], __shfl_xor_sync(0xFFFFFFFFu, odd ? two[0] : two[1], 4));
  one = max(one, __shfl_xor_sync(0xFFFFFFFFu, one, 2));
  return max(one, __shfl_xor_sync(0xFFFFFFFFu, one, 1));
}

/// One row's part of a warp: where its scales and codes go.
template <Case kCase>
struct FusedRow {
  const FusedArgs& args;
  std::int64_t row;
  int segment;
  std::uint8_t* codes;         // of the row's first column
  std::int64_t stripe_stride;  // COL32: from one 32 columns to the next

  __device__ FusedRow(const FusedArgs& args, std::int64_t row, int segment) : args(args), row(row), segment(segment) {
    const FusedQuantizeProblem& problem = args.problem;
    codes = problem.codes + row * problem.row_bytes;
    stripe_stride = 32;
    if (kCase != Case::kToken && problem.col32) {
      const std::int64_t stripes = (columns() + 31) / 32, matrix = row / problem.matrix_rows;
      const std::int64_t in_matrix = row - matrix * problem.matrix_rows;
      codes = problem.codes + (matrix * stripes * problem.matrix_rows + in_matrix) * 32;
      stripe_stride = problem.matrix_rows * 32;
    }
  }

  __device__ int columns() const { return static_cast<int>(args.problem.fused.cols); }

  /// A scale that the caller gave: the row's, or that of this lane's block.
  __device__ float given_scale() const {
    const FusedQuantizeProblem& problem = args.problem;
    const int block = problem.per_block ? segment * 8 + block_of_lane() : 0;
    return block * 128 < columns() ? problem.given[row * problem.given_steps.row_step + block * problem.given_steps.block_step] : 1.0f;
  }

  /// Behind the last row of transposed scales lie zeros. One scale for the tensor is stored once: rows that all write one address would
  /// wait for one another.
  __device__ void store_scale(float scale) const {
    const FusedQuantizeProblem& problem = args.problem;
    if constexpr (kCase == Case::kToken) {
      if (threadIdx.x == 0) problem.scales[row * problem.steps.row_step] = scale;
      return;
    }
    const int block = problem.per_block ? segment * 8 + block_of_lane() : 0;
    const bool mine =
        problem.per_block ? lane_id() % 4 == 0 && block * 128 < columns() : threadIdx.x == 0 && (row == 0 || problem.steps.row_step != 0);
    if (!mine) return;
    problem.scales[row * problem.steps.row_step + block * problem.steps.block_step] = scale;
    if (row == problem.fused.rows - 1)
#pragma unroll 1
      for (std::int64_t i = row + 1; i < problem.scale_rows; ++i)
        problem.scales[i * problem.steps.row_step + block * problem.steps.block_step] = 0.0f;
  }

  /// The codes of chunk k. COL32 has whole stripes: those of the padding are zero.
  __device__ void store_chunk(int k, const Codes& packed) const {
    const int column = segment * kSegment + 256 * k + 8 * lane_id();
    if constexpr (kCase == Case::kToken) {
      *reinterpret_cast<uint2*>(codes + column) = make_uint2(packed.low, packed.high);
    } else {
      std::uint8_t* to = codes + column / 32 * stripe_stride + column % 32;
      const int count = (args.problem.col32 ? (columns() + 31) / 32 * 32 : columns()) - column;
      const uint2 words = make_uint2(packed.low, packed.high);
      if constexpr (kCase != Case::kAny) {
        if (is_whole(kCase) || count > 0) *reinterpret_cast<uint2*>(to) = words;
      } else if (args.codes_aligned && count >= 8) {
        *reinterpret_cast<uint2*>(to) = words;
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (i < count) to[i] = static_cast<std::uint8_t>((i < 4 ? packed.low : packed.high) >> (8 * (i % 4)));
      }
    }
  }
};

enum class Way { kQuick, kClamped, kCareful, kDefinition };

/// A lane's scale is its row's, or its block's.
template <bool kInt8, Way kWay, Case kCase>
__device__ inline void encode_row(const FusedRow<kCase>& row, const float (&y)[kChunks][8], float scale) {
  constexpr Element kElement = kInt8 ? Element::kInt8 : Element::kE4m3;
  const bool per_block = kCase != Case::kToken && row.args.problem.per_block;
  Divisor mine{};
  mine.scale = scale;
  if constexpr (kWay == Way::kCareful) {
    mine = make_divisor(scale);
  } else if constexpr (kWay != Way::kDefinition) {
    const float2 reciprocal = quick_reciprocal(scale);
    mine.high = reciprocal.x, mine.low = reciprocal.y;
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    Divisor divisor = mine;
    if (per_block) {
      const int source = lane_of_chunk(k);
      divisor.high = __shfl_sync(0xFFFFFFFFu, mine.high, source);
      divisor.low = __shfl_sync(0xFFFFFFFFu, mine.low, source);
      if constexpr (kWay == Way::kCareful || kWay == Way::kDefinition) divisor.scale = __shfl_sync(0xFFFFFFFFu, mine.scale, source);
      if constexpr (kWay == Way::kCareful) divisor.nearest = __shfl_sync(0xFFFFFFFFu, mine.nearest, source);
    }
    if constexpr (kWay == Way::kDefinition) {
      Codes codes{0, 0};
#pragma unroll
      for (int i = 0; i < 8; ++i)
        (i < 4 ? codes.low : codes.high) |= encode_by_definition<kElement>(y[k][i], divisor.scale) << (8 * (i % 4));
      row.store_chunk(k, codes);
    } else {
      float q[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        q[i] = kWay == Way::kCareful ? divide<DType::kF32>(y[k][i], divisor) : quick_quotient(y[k][i], divisor.high, divisor.low);
        if constexpr (kInt8 && kWay != Way::kQuick) q[i] = clamp_to_int8(q[i]);
      }
      row.store_chunk(k, encode_quotients<kElement, 8, false>(q));
    }
  }
}

template <bool kInt8, Case kCase>
__device__ inline void encode_row(const FusedRow<kCase>& row, const float (&y)[kChunks][8], float scale, bool finite) {
  // A row has one way: of a scale per block the lanes have different ones.
  const auto any = [](bool condition) { return kCase == Case::kToken ? condition : __any_sync(0xFFFFFFFFu, condition) != 0; };
  if (!finite || any(!is_plain_divisor(scale)))
    encode_row<kInt8, Way::kDefinition>(row, y, scale);
  else if (any(!is_tie_free(scale)))
    encode_row<kInt8, Way::kCareful>(row, y, scale);
  else if (kInt8 && kCase != Case::kToken && row.args.problem.given != nullptr)
    encode_row<kInt8, Way::kClamped>(row, y, scale);
  else
    encode_row<kInt8, Way::kQuick>(row, y, scale);
}

template <FusedOp kOp, DType kType, bool kInt8, Case kCase, bool kShort>
__global__ void __maxnreg__(registers_of(kOp, kCase)) fused_rows(const __grid_constant__ FusedArgs args) {
  constexpr int kRows = rows_of(kOp), kSize = size_of(kType);
  constexpr bool kStagesWeights = stages_weights(kOp, kCase, kShort);
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Exchange<kRows> exchange;
  const FusedQuantizeProblem& problem = args.problem;
  const FusedProblem& fused = problem.fused;
  const int segment = static_cast<int>(threadIdx.x / 32), first = segment * kSegment;
  if constexpr (kCase == Case::kToken && (kShort || kOp == FusedOp::kAddRmsNorm)) {  // of RMSNorm's long rows it costs 3%
    if (blockIdx.x < kEarlyBlocks / 2 && lane_id() == 0) {
      prefetch_bulk(static_cast<const char*>(fused.x) + (blockIdx.x * fused.x_stride + first) * kSize, kSegment * kSize);
      if constexpr (kOp == FusedOp::kAddRmsNorm)
        prefetch_bulk(static_cast<const char*>(fused.other) + (blockIdx.x * fused.other_stride + first) * kSize, kSegment * kSize);
    }
  }
  wait_for_earlier_kernels();
  const int left = static_cast<int>(fused.cols) - first;
  unsigned char* stage = memory + segment * ((kRows * inputs_of(kOp) + (kStagesWeights ? 1 : 0)) * stage_bytes(kType));
  const std::int64_t begin = std::int64_t{blockIdx.x} * kRows;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = begin + r < fused.rows ? begin + r : begin;  // a row that is not there repeats the one before
    const char* x = static_cast<const char*>(fused.x) + (row * fused.x_stride + first) * kSize;
    const std::int64_t other = (row * fused.other_stride + first) * kSize;
    if constexpr (kOp == FusedOp::kAddRmsNorm)
      stage_sum<kType, kCase>(stage + r * stage_bytes(kType), x, static_cast<const char*>(fused.other) + other,
                              static_cast<char*>(fused.residual) + other, left, args.x_aligned && args.other_aligned);
    else
      stage_segment<kType, kCase>(stage + r * stage_bytes(kType), x, left, args.x_aligned);
    if constexpr (kOp == FusedOp::kSiluMul)
      stage_segment<kType, kCase>(stage + (kRows + r) * stage_bytes(kType), static_cast<const char*>(fused.other) + other, left,
                                  args.other_aligned);
  }
  if constexpr (kStagesWeights)
    stage_whole<kType, true>(stage + kRows * stage_bytes(kType), static_cast<const char*>(fused.weight) + first * kSize);
  wait_for_copies();
  __syncwarp();

  float y[kRows][kChunks][8];
  produce<kOp, kType, kCase, kStagesWeights>(args, stage, segment, exchange, y);

  const bool by_row = kCase == Case::kToken || (!problem.per_block && problem.given == nullptr);
  std::uint32_t chunks[kRows][kChunks], largest[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    largest[r] = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      chunks[r][k] = chunk_largest(y[r][k]);
      largest[r] = max(largest[r], chunks[r][k]);
    }
  }
  if (by_row) block_largest(largest, args, segment, exchange.maxima);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r > 0 && begin + r >= fused.rows) break;
    const FusedRow<kCase> row(args, begin + r, segment);
    const bool finite = by_row ? largest[r] < 0x7F800000u : !__any_sync(0xFFFFFFFFu, largest[r] >= 0x7F800000u);
    if (!finite) {
      std::uint32_t again[1] = {0};
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        chunks[r][k] = clean(y[r][k]);
        again[0] = max(again[0], chunks[r][k]);
      }
      if (by_row) block_largest(again, args, segment, exchange.finite[r]);
      largest[r] = again[0];
    }
    float scale;
    if (by_row) {
      scale = scale_of<kInt8>(largest[r]);
    } else if (problem.given != nullptr) {
      scale = row.given_scale();
    } else {
      scale = scale_of<kInt8>(spread_blocks(chunks[r]));
    }
    row.store_scale(scale);
    encode_row<kInt8>(row, y[r], scale, finite);
  }
}

template <FusedOp kOp, DType kType, bool kInt8>
int launch_fused_rows(const FusedQuantizeProblem& problem, Stream stream) {
  constexpr int kSize = size_of(kType);
  const FusedProblem& fused = problem.fused;
  const int segments = static_cast<int>((fused.cols + kSegment - 1) / kSegment);
  const bool whole = fused.cols * kSize % 16 == 0;
  const auto rows_aligned = [&](const void* data, std::int64_t stride) {
    return whole && is_aligned(data, 16) && (fused.rows == 1 || stride * kSize % 16 == 0);
  };
  const FusedArgs args{problem,
                       segments,
                       rows_aligned(fused.x, fused.x_stride),
                       rows_aligned(fused.other, fused.other_stride) && is_aligned(fused.residual, 16),
                       is_aligned(problem.codes, 8) && (problem.col32 || problem.row_bytes % 8 == 0),
                       1.0 / static_cast<double>(fused.cols),
                       (fused.cols & (fused.cols - 1)) == 0};
  const auto is_aligned_vector = [&](const void* data) { return data != nullptr && is_aligned(data, 16) && fused.weight_dtype == kType; };
  const bool aligned = args.x_aligned && args.other_aligned && args.codes_aligned && fused.cols % 8 == 0 &&
                       (!is_norm(kOp) || is_aligned_vector(fused.weight)) && (kOp != FusedOp::kLayerNorm || is_aligned_vector(fused.bias));
  const bool whole_segments = aligned && fused.cols % kSegment == 0;
  if constexpr (kOp == FusedOp::kLayerNorm && is_16_bit(kType))
    if (whole_segments && accepts_pairs(problem, segments)) return launch_pairs<kType, kInt8>(args, stream);
  auto kernel = fused_rows<kOp, kType, kInt8, Case::kAny, false>;
  bool is_short = false;
  if (whole_segments && !problem.col32 && !problem.per_block && problem.given == nullptr) {
    kernel = fused_rows<kOp, kType, kInt8, Case::kToken, false>;
    if constexpr (kOp == FusedOp::kRmsNorm)
      if (is_short = segments <= kShortRow; is_short) kernel = fused_rows<kOp, kType, kInt8, Case::kToken, true>;
  } else if (whole_segments) {
    kernel = fused_rows<kOp, kType, kInt8, Case::kWhole, false>;
  } else if (aligned) {
    kernel = fused_rows<kOp, kType, kInt8, Case::kAligned, false>;
  }
  const int rows = rows_of(kOp), stages = rows * inputs_of(kOp) + (stages_weights(kOp, Case::kToken, is_short) ? 1 : 0);
  const std::size_t memory = static_cast<std::size_t>(segments) * static_cast<std::size_t>(stages) * stage_bytes(kType);
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(memory));
      error != cudaSuccess)
    return error;
  return launch_after(kernel, (fused.rows + rows - 1) / rows, segments * 32, memory, stream, args);
}

template <FusedOp kOp, DType kType>
int launch_fused_rows(const FusedQuantizeProblem& problem, Stream stream) {
  return problem.element == Element::kInt8 ? launch_fused_rows<kOp, kType, true>(problem, stream)
                                           : launch_fused_rows<kOp, kType, false>(problem, stream);
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
