/// Quantizes anything: every format, granularity, rounding, stride and length, by the definition. The last row of the table.
/// Mapping:  scales: a warp (small rectangles, int1's ordered sum), a thread block (large ones), or slabs of rows with one thread per
///           column (columns, whole tensors) that leave maxima in the workspace. Codes: a thread per 8 neighbours of a row, whose
///           codes fill whole bytes.
/// Requires: nothing.     Bound: integer arithmetic.     Meaning: kernels/reference/quantize.cc, bit for bit.

#include "format/packing.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kSmallRectangle = 4096;
constexpr int kSlabRows = 64;

/// |most negative| and largest of the finite values.
struct Extent {
  float negative = 0.0f, positive = 0.0f;
  std::uint32_t flags = 0;

  __device__ void add(float x) {
    if (x != x)
      flags |= 1u;
    else if (!is_finite(x))
      flags |= 2u;
    else if (x < 0.0f)
      negative = fmaxf(negative, -x);
    else
      positive = fmaxf(positive, x);
  }
  __device__ void merge_warp() {
    negative = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(negative)));
    positive = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(positive)));
    flags = __reduce_or_sync(0xFFFFFFFFu, flags);
  }
};

struct Rectangle {
  std::int64_t row_begin, row_end, col_begin, col_end;
};

__device__ Rectangle rectangle_of(const QuantizeProblem& p, std::int64_t cell) {
  if (p.grid.whole_tensor) return {0, p.rows, 0, p.cols};
  const std::int64_t grid_row = cell / p.grid.cols, grid_col = cell % p.grid.cols;
  const std::int64_t matrix = grid_row / p.grid.tiles_per_matrix, tile = grid_row % p.grid.tiles_per_matrix;
  const std::int64_t row = matrix * p.grid.matrix_rows, col = grid_col * p.grid.tile_cols;
  return {row + tile * p.grid.tile_rows, row + min(p.grid.matrix_rows, (tile + 1) * p.grid.tile_rows), col,
          min(p.cols, col + p.grid.tile_cols)};
}

__device__ float value_at(const QuantizeProblem& p, std::int64_t row, std::int64_t col) {
  return load_value(p.x, p.dtype, row * p.row_stride + col);
}

__device__ void store_made(const QuantizeProblem& p, std::int64_t cell, const ScaleAndZero& made) {
  store_scale_code(p.scales, p.scheme.scale, cell, made.scale.code);
  if (p.scheme.asymmetric) p.zero_points[cell] = made.zero_point;
}

__device__ void make_scale(const QuantizeProblem& p, std::int64_t cell, float negative, float positive) {
  const float outer = p.scheme.has_outer_scale ? *p.outer_scale : 1.0f;
  store_made(p, cell,
             p.scheme.asymmetric ? scale_from_range(p.scheme, -negative, positive)
                                 : ScaleAndZero{scale_from_amax(p.scheme, fmaxf(negative, positive), outer), 0});
}

/// sum |x| in the order of scale_rule.h: this warp's lanes are the 32 partial sums.
__device__ double ordered_sum(const QuantizeProblem& p, const Rectangle& r, int lane, std::uint32_t& flags) {
  double total = 0.0;
  for (std::int64_t row = r.row_begin; row < r.row_end; ++row) {
    double row_sum = 0.0;
    for (std::int64_t begin = r.col_begin; begin < r.col_end; begin += kSumSegment) {
      const std::int64_t end = min(begin + kSumSegment, r.col_end);
      double sum = 0.0;
      for (std::int64_t col = begin + lane; col < end; col += kSumLanes) {
        const float x = value_at(p, row, col);
        if (is_finite(x))
          sum += fabs(static_cast<double>(x));
        else
          flags |= x != x ? 1u : 2u;
      }
      for (int half = kSumLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, half);
      row_sum += sum;
    }
    total += row_sum;
  }
  return total;  // right in lane 0
}

/// One warp or one thread block per rectangle.
template <bool kWarp>
__global__ void __launch_bounds__(kThreads) scales_by_rectangle(const QuantizeProblem p) {
  __shared__ Extent extents[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t cell = kWarp ? std::int64_t{blockIdx.x} * (kThreads / 32) + warp : blockIdx.x;
  if (cell >= p.grid.count()) return;
  const Rectangle r = rectangle_of(p, cell);
  const std::int64_t width = r.col_end - r.col_begin, count = width * (r.row_end - r.row_begin);
  if (kWarp && p.scheme.rule == ScaleRule::kMeanAbsolute) {
    std::uint32_t flags = 0;
    const double sum = ordered_sum(p, r, lane, flags);
    if (lane == 0) store_made(p, cell, {scale_from_sum(p.scheme, sum, count), 0});
    if (flags != 0 && p.flags != nullptr) atomicOr(p.flags, flags);
    return;
  }
  Extent extent;
  for (std::int64_t i = kWarp ? lane : threadIdx.x; i < count; i += kWarp ? 32 : kThreads)
    extent.add(value_at(p, r.row_begin + i / width, r.col_begin + i % width));
  extent.merge_warp();
  if (lane == 0 && extent.flags != 0 && p.flags != nullptr) atomicOr(p.flags, extent.flags);
  if (!kWarp) {
    if (lane == 0) extents[warp] = extent;
    __syncthreads();
    for (const Extent& other : extents) {
      extent.negative = fmaxf(extent.negative, other.negative);
      extent.positive = fmaxf(extent.positive, other.positive);
    }
  }
  if (kWarp ? lane == 0 : threadIdx.x == 0) make_scale(p, cell, extent.negative, extent.positive);
}

/// The two maxima of a cell in the workspace, as bits of non-negative floats: integers that atomicMax orders.
struct CellExtent {
  std::uint32_t negative, positive;
};

/// One thread per column of a slab of rows, for columns and whole tensors. The last cell is the tensor's, for outer scales.
__global__ void __launch_bounds__(kThreads)
    extents_by_slab(const QuantizeProblem p, CellExtent* cells, bool whole, std::int64_t col_blocks) {
  const std::int64_t col = std::int64_t{blockIdx.x} % col_blocks * kThreads + threadIdx.x;
  const std::int64_t slab = std::int64_t{blockIdx.x} / col_blocks * kSlabRows;
  const std::int64_t end = min(slab + kSlabRows, p.rows);
  Extent extent;
  std::uint32_t flags = 0;
  const auto leave = [&](std::int64_t cell) {
    if (extent.negative > 0.0f) atomicMax(&cells[cell].negative, __float_as_uint(extent.negative));
    if (extent.positive > 0.0f) atomicMax(&cells[cell].positive, __float_as_uint(extent.positive));
    flags |= extent.flags;
    extent = {};
  };
  if (col < p.cols) {
    for (std::int64_t row = slab; row < end; ++row) {
      if (!whole && row > slab && p.grid.grid_row(row) != p.grid.grid_row(row - 1))
        leave(p.grid.grid_row(row - 1) * p.grid.cols + p.grid.grid_col(col));
      extent.add(value_at(p, row, col));
    }
    if (!whole) leave(p.grid.grid_row(end - 1) * p.grid.cols + p.grid.grid_col(col));
  }
  if (whole) {
    extent.merge_warp();
    if (threadIdx.x % 32 == 0) leave(0);
  }
  if (flags != 0 && p.flags != nullptr) atomicOr(p.flags, flags);
}

__global__ void __launch_bounds__(kThreads) scales_from_extents(const QuantizeProblem p, const CellExtent* cells) {
  const std::int64_t cell = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (cell < p.grid.count()) make_scale(p, cell, __uint_as_float(cells[cell].negative), __uint_as_float(cells[cell].positive));
}

__global__ void outer_from_extent(const QuantizeProblem p, const CellExtent* cell) {
  *p.outer_scale = p.given_outer_scale != nullptr ? *p.given_outer_scale
                                                  : outer_scale_from_amax(p.scheme, __uint_as_float(max(cell->negative, cell->positive)));
}

__global__ void __launch_bounds__(kThreads) store_given_scales(const QuantizeProblem p) {
  const std::int64_t cell = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (cell >= p.grid.count()) return;
  store_scale_code(p.scales, p.scheme.scale, cell, store_scale(p.scheme.scale, p.given_scales[cell], 1.0f).code);
  if (p.scheme.asymmetric) p.zero_points[cell] = p.given_zero_points[cell];
}

/// Codes of 8 neighbours: bits bytes, written together.
__global__ void __launch_bounds__(kThreads) encode_groups(const QuantizeProblem p, std::int64_t groups_per_row) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = index / groups_per_row, begin = (index - row * groups_per_row) * 8;
  if (row >= p.rows) return;
  const int bits = p.scheme.element.bits, count = static_cast<int>(min(std::int64_t{8}, p.cols - begin));
  const float outer = p.scheme.has_outer_scale ? *p.outer_scale : 1.0f;
  std::uint64_t window[2] = {0, 0};
  std::int64_t cell = -1;
  float scale = 1.0f;
  std::int32_t zero_point = 0;
  std::uint32_t flags = 0;
  const std::int64_t cell_row = p.grid.grid_row(row) * p.grid.cols;
  for (int i = 0; i < count; ++i) {
    const std::int64_t col = begin + i;
    if (p.scheme.has_scales() && cell_row + p.grid.grid_col(col) != cell) {
      cell = cell_row + p.grid.grid_col(col);
      scale = effective_scale(p.scheme, load_scale_code(p.scales, p.scheme.scale, cell), outer);
      if (p.scheme.asymmetric) zero_point = p.zero_points[cell];
    }
    const float x = value_at(p, row, col);
    if (!is_finite(x)) flags |= x != x ? 1u : 2u;
    const std::uint32_t random =
        p.rounding == Rounding::kStochastic ? random_bits(p.seed, static_cast<std::uint64_t>(row * p.cols + col)) : 0u;
    const std::uint64_t code = quantize_element(p.scheme, x, scale, zero_point, p.rounding, p.overflow, random);
    const int bit = i * bits;
    if (bit < 64) window[0] |= code << bit;
    if (bit >= 64)
      window[1] |= code << (bit - 64);
    else if (bit + bits > 64)
      window[1] |= code >> (64 - bit);
  }
  std::uint8_t* out = p.codes + static_cast<std::size_t>(row) * p.row_bytes + begin / 8 * bits;
  const int bytes = (count * bits + 7) / 8;
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<std::uint8_t>(window[i / 8] >> (i % 8 * 8));
  if (flags != 0 && p.flags != nullptr) atomicOr(p.flags, flags);
}

bool is_sliced(const QuantizeProblem& p) {
  return p.scheme.rule != ScaleRule::kMeanAbsolute && (p.grid.whole_tensor || (p.grid.tile_cols < 32 && p.grid.tile_rows > 1));
}

bool accepts(const QuantizeProblem&) { return true; }

std::size_t workspace(const QuantizeProblem& p) {
  const bool made = p.scheme.has_scales() && p.given_scales == nullptr;
  const std::int64_t cells = made && is_sliced(p) ? p.grid.count() : 0;
  return static_cast<std::size_t>(cells + (p.scheme.has_outer_scale ? 1 : 0)) * sizeof(CellExtent);
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

/// Maxima of cells (or of the tensor) into the workspace.
int measure_slabs(const QuantizeProblem& p, CellExtent* cells, std::int64_t count, bool whole, Stream stream) {
  if (const int error = cudaMemsetAsync(cells, 0, static_cast<std::size_t>(count) * sizeof(CellExtent), stream); error != 0) return error;
  const std::int64_t col_blocks = blocks_for(p.cols), slabs = (p.rows + kSlabRows - 1) / kSlabRows;
  return launch_kernel(extents_by_slab, col_blocks * slabs, kThreads, stream, p, cells, whole, col_blocks);
}

int make_scales(const QuantizeProblem& p, Stream stream) {
  const std::int64_t cells = p.grid.count();
  CellExtent* extents = static_cast<CellExtent*>(p.workspace);
  if (p.scheme.has_outer_scale) {
    if (const int error = measure_slabs(p, extents, 1, true, stream); error != 0) return error;
    if (const int error = launch_kernel(outer_from_extent, 1, 1, stream, p, extents); error != 0) return error;
    ++extents;
  }
  if (p.given_scales != nullptr) return launch_kernel(store_given_scales, blocks_for(cells), kThreads, stream, p);
  if (is_sliced(p)) {
    if (const int error = measure_slabs(p, extents, cells, p.grid.whole_tensor, stream); error != 0) return error;
    return launch_kernel(scales_from_extents, blocks_for(cells), kThreads, stream, p, extents);
  }
  const bool small = p.grid.tile_rows * p.grid.tile_cols <= kSmallRectangle || p.scheme.rule == ScaleRule::kMeanAbsolute;
  if (small) return launch_kernel(scales_by_rectangle<true>, (cells + kThreads / 32 - 1) / (kThreads / 32), kThreads, stream, p);
  return launch_kernel(scales_by_rectangle<false>, cells, kThreads, stream, p);
}

int run(const QuantizeProblem& p, Stream stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  if (p.scheme.has_scales())
    if (const int error = make_scales(p, stream); error != 0) return error;
  const std::int64_t groups = (p.cols + 7) / 8;
  return launch_kernel(encode_groups, blocks_for(groups * p.rows), kThreads, stream, p, groups);
}

}  // namespace

const QuantizeKernel kQuantizeGeneric{"cuda_quantize_generic", accepts, workspace, run};

}  // namespace narrow::cuda
