/// Canonical codes and scales to chunks (weight_layout.h) and back, bit for bit.
///
/// Products copy chunks before they wait for the kernel that ran before them. So the kernels that write chunks and factors never let the
/// next one start early, and every thread's writes are in the second-level cache, where those copies read, before it ends.

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_finish.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128, kMostWords = 32;

__device__ std::int64_t cell_of(const WeightView& view, int row, int column) {
  return view.grid.grid_row(row) * view.grid.cols + view.grid.grid_col(column);
}
__device__ std::uint32_t scale_code(const WeightView& view, int row, int column) {
  return load_scale_code(view.scales, view.scheme.scale, cell_of(view, row, column));
}

/// What a power of two that is a scale may be, times the row's fold, so that its products with all codes are exact in fp16 (and then in
/// bf16): 2^lowest .. 2^highest.
struct FoldRange {
  int lowest, highest;
};
__device__ FoldRange fold_range(const WeightLayoutInfo& layout, const Format& element) {
  if (layout.kind == WeightKind::kInteger) return {-24, 15 - layout.bits};
  // Decoded values are value * 2^(bias - 15): from 2^(-14 - M), of which fp16 has ten binades less M below, to below 2^16.
  return {element.mantissa_bits - 10, min(15, 30 - element.bias - largest_exponent(element))};
}

__device__ void mark_unsteady(const WeightLayoutInfo& layout, float* factors) {
  *reinterpret_cast<std::uint32_t*>(factors + 2 * layout.row_chunks * kChunkRows) = 1u;
}

/// One warp per row: what its sums are multiplied by, and what its scales. Scales along k that are no powers of two are steady where all of
/// a row are normal numbers and their quotients at most 2^32: sums in units of any of them stay far from the ends of fp32.
__global__ void write_factors(const WeightView view, float* factors) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = view.layout.row_chunks * kChunkRows;
  if (row >= rows) return;
  const Format& element = view.scheme.element;
  const int exponent = view.layout.kind == WeightKind::kFloat ? 15 - element.bias : (element.is_integer() ? -element.fraction_bits : 0);
  float factor = view.outer_scale != nullptr ? *view.outer_scale : 1.0f, fold = 1.0f;
  if (view.layout.scale == ChunkScale::kNone && view.scheme.has_scales() && row < view.n)
    factor = effective_scale(view.scheme, scale_code(view, row, 0), factor);
  if (view.layout.scale != ChunkScale::kNone && row < view.n) {
    float lowest = INFINITY, highest = 0.0f;  // but for NaN, which is in the factor
    for (std::int64_t i = lane; i < view.grid.cols; i += 32) {
      const std::uint32_t code = load_scale_code(view.scales, view.scheme.scale, view.grid.grid_row(row) * view.grid.cols + i);
      const float scale = fabsf(decode(view.scheme.scale, code));
      lowest = fminf(lowest, scale);
      highest = fmaxf(highest, scale);
    }
    for (int step = 16; step > 0; step /= 2) {
      lowest = fminf(lowest, __shfl_xor_sync(0xFFFFFFFFu, lowest, step));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, step));
    }
    constexpr Format kPowers = kE8m0;  // device code cannot refer to a namespace-scope object
    if (view.scheme.scale == kPowers)
      fold = ldexpf(1.0f, fold_range(view.layout, element).highest - max(-100, ilogbf(highest)));
    else if (!(lowest >= 0x1p-100f && highest <= 0x1p100f && highest <= lowest * 0x1p32f))
      mark_unsteady(view.layout, factors);
  }
  if (lane != 0) return;
  factors[row] = ldexpf(factor, exponent);
  factors[rows + row] = fold;
  __threadfence();
}

/// One thread block per chunk. The canonical bytes of its rows come into shared memory; then every thread fills one lane's words.
__global__ void __launch_bounds__(kThreads)
    write_chunks(const WeightView view, const Placement placement, std::uint8_t* chunks, float* factors) {
  __shared__ std::uint8_t rows[kChunkRows * (kChunkDepth * 2 + 4)];
  __shared__ std::uint32_t words[kMostWords][kThreads];
  const WeightLayoutInfo& layout = view.layout;
  const Format& element = view.scheme.element;
  const int thread = static_cast<int>(threadIdx.x), bits = element.bits, bytes = kChunkDepth / 8 * bits, pitch = bytes + 4;
  const int row_chunk = static_cast<int>(blockIdx.x) / layout.depth_chunks;
  const int depth_chunk = static_cast<int>(blockIdx.x) % layout.depth_chunks;
  const int first_row = row_chunk * kChunkRows, first_column = depth_chunk * kChunkDepth;
  std::uint8_t* chunk = chunks + std::int64_t{blockIdx.x} * layout.chunk_bytes();

  const std::int64_t first_byte = std::int64_t{depth_chunk} * bytes;
  for (int i = thread; i < kChunkRows * bytes; i += kThreads) {
    const int r = i / bytes, b = i % bytes;
    const bool real = first_row + r < view.n && first_byte + b < view.row_bytes;
    rows[r * pitch + b] = real ? view.codes[(first_row + r) * view.row_bytes + first_byte + b] : std::uint8_t{0};
  }
  for (int i = 0; i < 2 * layout.bits; ++i) words[i][thread] = 0;
  __syncthreads();

  const int lane = thread % 32, warp = thread / 32;
  const bool may_be_nan = element.is_float() && element.specials == Specials::kNanOnly;
  for (int i = 0; i < 4 * kPairs; ++i) {  // two halves of 16 pairs
    const int half = i / 32, pair = i / 2 % kPairs, second = i % 2;
    const int r = warp * 16 + lane / 4 + pair % 2 * 8, k = half * 64 + pair / 4 * 16 + pair / 2 % 2 * 8 + lane % 4 * 2 + second;
    const bool real = first_row + r < view.n && first_column + k < view.k;
    std::uint32_t code = real ? read_code(rows + r * pitch, k, bits) : 0u;
    if (may_be_nan && (code & ~(1u << (bits - 1))) > element.max_code()) factors[first_row + r] = __uint_as_float(0x7FC00000u);
    code = real ? to_stored(layout, element, code) : (layout.kind == WeightKind::kInteger ? 1u << (layout.bits - 1) : 0u);
    if (layout.kind == WeightKind::kDense) {
      words[half * 16 + pair][thread] |= code << (16 * second);
    } else {
      for (int b = 0; b < layout.bits; ++b)
        words[half * layout.bits + placement.word[pair][b]][thread] |= (code >> b & 1u) << (placement.bit[pair][b] + 16 * second);
    }
  }
  for (int i = 0; i < 2 * layout.bits; ++i)
    *reinterpret_cast<std::uint32_t*>(chunk + word_offset(layout.bits, warp, lane, i)) = words[i][thread];

  constexpr Format kPowers = kE8m0;
  const auto is_zero = [&](int r, int first) {  // all codes of a step
    bool zero = !view.scheme.asymmetric;
    for (int k = first; k < first + layout.step; ++k)
      zero = zero && (read_code(rows + r * pitch, k, bits) & (element.is_float() ? (1u << (bits - 1)) - 1u : ~0u)) == 0;
    return zero;
  };
  for (int i = thread; i < kChunkRows * (kChunkDepth / layout.step); i += kThreads) {
    const int per_row = kChunkDepth / layout.step, row = first_row + i / per_row, column = first_column + i % per_row * layout.step;
    const bool real = row < view.n && column < view.k;
    if (layout.scale != ChunkScale::kNone) {
      // Behind k there are codes of zero: no scale can make anything else of them. Behind n a scale is divided by.
      const float scale = real ? decode(view.scheme.scale, scale_code(view, row, column)) : (row < view.n ? 0.0f : 1.0f);
      if (scale != scale) factors[row] = scale;
      if (real && view.scheme.scale == kPowers) {
        const float folded = scale * factors[layout.row_chunks * kChunkRows + row];
        if (folded < ldexpf(1.0f, fold_range(layout, element).lowest) && !is_zero(i / per_row, i % per_row * layout.step))
          mark_unsteady(layout, factors);
      }
      std::uint8_t* scales = chunk + layout.code_bytes();
      if (layout.scale == ChunkScale::kFloat)
        reinterpret_cast<float*>(scales)[i] = scale;
      else
        reinterpret_cast<std::uint16_t*>(scales)[i] = static_cast<std::uint16_t>(__float_as_uint(scale) >> 16);
    }
    if (layout.has_zeros)
      chunk[layout.code_bytes() + layout.scale_bytes() + i] = real ? view.zero_points[cell_of(view, row, column)] : std::uint8_t{0};
  }
  __threadfence();
}

/// One thread per byte of canonical codes.
__global__ void read_codes(const WeightView view, const Placement placement, std::uint8_t* codes) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / view.row_bytes;
  if (row >= view.n) return;
  const int byte = static_cast<int>(i % view.row_bytes), bits = view.scheme.element.bits;
  std::uint32_t result = 0;
  for (int bit = 0; bit < 8; ++bit) {
    const int column = (byte * 8 + bit) / bits;
    if (column >= view.k) break;
    const std::uint32_t stored = stored_code(view.layout, placement, view.chunks, static_cast<int>(row), column);
    result |= (from_stored(view.layout, view.scheme.element, stored) >> ((byte * 8 + bit) % bits) & 1u) << bit;
  }
  codes[i] = static_cast<std::uint8_t>(result);
}

/// One thread per cell of the scale grid: its first row and column say what was stored.
__global__ void read_scales(const WeightView view, void* scales, std::uint8_t* zero_points) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= view.grid.count()) return;
  const WeightLayoutInfo& layout = view.layout;
  const int row = view.grid.whole_tensor ? 0 : static_cast<int>(i / view.grid.cols * view.grid.tile_rows);
  const int column = static_cast<int>(i % view.grid.cols * view.grid.tile_cols);
  const std::int64_t index = std::int64_t{row / kChunkRows} * layout.depth_chunks + column / kChunkDepth;
  const std::uint8_t* chunk = view.chunks + index * layout.chunk_bytes();
  const int at = layout.scale_index(row, column);
  if (scales != nullptr) store_scale_code(scales, view.scheme.scale, i, encode(view.scheme.scale, stored_scale(layout, chunk, at)));
  if (zero_points != nullptr) zero_points[i] = chunk[layout.code_bytes() + layout.scale_bytes() + at];
}

__global__ void arrange_columns(const std::uint16_t* x, std::int64_t x_pitch, int m, int k, const std::int32_t* order, std::uint16_t* to,
                                std::int64_t pitch) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / pitch, column = i % pitch;
  if (row < m) to[i] = column < k ? x[row * x_pitch + (order != nullptr ? order[column] : column)] : std::uint16_t{0};
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

Placement placement_of(const WeightLayoutInfo& layout) {
  return layout.kind == WeightKind::kDense ? Placement{} : make_placement(layout.kind, layout.bits, layout.mantissa);
}

}  // namespace

int launch_prepare_weight(const WeightView& view, std::uint8_t* chunks, float* factors, Stream stream) {
  const WeightLayoutInfo& layout = view.layout;
  const std::int64_t rows = std::int64_t{layout.row_chunks} * kChunkRows;
  if (const cudaError_t error = cudaMemsetAsync(factors + 2 * rows, 0, sizeof(float), static_cast<cudaStream_t>(stream))) return error;
  if (const int error = launch_kernel(write_factors, blocks_for(rows * 32), kThreads, stream, view, factors)) return error;
  return launch_kernel(write_chunks, std::int64_t{layout.row_chunks} * layout.depth_chunks, kThreads, stream, view, placement_of(layout),
                       chunks, factors);
}

int launch_unprepare_weight(const WeightView& view, std::uint8_t* codes, void* scales, std::uint8_t* zero_points, Stream stream) {
  const std::int64_t bytes = view.n * view.row_bytes;
  const Placement placement = placement_of(view.layout);
  if (const int error = launch_kernel(read_codes, blocks_for(bytes), kThreads, stream, view, placement, codes)) return error;
  if (scales == nullptr && zero_points == nullptr) return cudaSuccess;
  return launch_kernel(read_scales, blocks_for(view.grid.count()), kThreads, stream, view, scales, zero_points);
}

int launch_arrange_columns(const WeightProblem& problem, void* to, std::int64_t pitch, Stream stream) {
  return launch_kernel(arrange_columns, blocks_for(problem.m * pitch), kThreads, stream, static_cast<const std::uint16_t*>(problem.x),
                       problem.x_pitch, problem.m, problem.w.k, problem.order, static_cast<std::uint16_t*>(to), pitch);
}

}  // namespace narrow::cuda
