/// Scales chosen for the least loss: a lane of a warp has a candidate of its own, the scale that is there is lane 0's.
/// Mapping: by rounding, one warp per row: every lane rounds the rectangle's columns in order, 16 at a time in registers, with the errors
/// of
///          those before them in memory. By importance, one warp per rectangle, or part of one's rows.
/// Bound:   instructions of the encoding, about 200 per column and warp, and width / 2 multiply-subtracts.
/// Meaning: methods/clip_search.cc and methods/gptq.cc, with their order of operations but for sums over several rows.

#include <algorithm>

#include "format/scale_candidates.h"
#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8, kStrip = 16, kDepth = 64;
constexpr unsigned kAll = 0xFFFFFFFFu;
static_assert(kScaleCandidates + 1 == kLanes, "one candidate per lane, and the scale that is there");

/// Columns of one row, `count` of them, spread over the lanes; every lane gets all they say.
__device__ inline Extremes extremes_of(const float* x, int count, double share) {
  Extremes e;
  for (int c = static_cast<int>(threadIdx.x) % kLanes; c < count; c += kLanes) {
    e.lowest = fminf(e.lowest, x[c]);
    e.highest = fmaxf(e.highest, x[c]);
    e.mean += fabs(static_cast<double>(x[c])) * share;
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    e.lowest = fminf(e.lowest, __shfl_xor_sync(kAll, e.lowest, step));
    e.highest = fmaxf(e.highest, __shfl_xor_sync(kAll, e.highest, step));
    e.mean += __shfl_xor_sync(kAll, e.mean, step);
  }
  return e;
}

/// This lane's scale; where all values are zero any is exact, and what is there stays.
__device__ inline ScaleAndZero scale_of_lane(const ScaleSearch& p, const Extremes& e, std::int64_t cell, float outer) {
  const Scheme& scheme = p.weight.scheme;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (lane > 0 && e.lowest != e.highest) return scale_candidate(scheme, e, lane - 1, outer);
  ScaleAndZero own;
  own.scale.code = load_scale_code(p.weight.scales, scheme.scale, cell);
  if (scheme.asymmetric) own.zero_point = p.weight.zero_points[cell];
  return own;
}

/// The lane with the least loss stores its scale.
__device__ inline void store_best(const ScaleSearch& p, const ScaleAndZero& mine, double loss, std::int64_t cell) {
  int best = 0;
  double least = __shfl_sync(kAll, loss, 0);
  for (int lane = 1; lane < kLanes; ++lane) {
    const double other = __shfl_sync(kAll, loss, lane);
    if (other >= least) continue;
    least = other;
    best = lane;
  }
  if (static_cast<int>(threadIdx.x) % kLanes != best) return;
  store_scale_code(p.weight.scales, p.weight.scheme.scale, cell, mine.scale.code);
  if (p.weight.scheme.asymmetric) p.weight.zero_points[cell] = mine.zero_point;
}

__global__ void __launch_bounds__(kWarps* kLanes) search_by_rounding(const ScaleSearch p, const float* upper, float* scratch) {
  __shared__ float u[kDepth][kStrip], own[kStrip][2 * kStrip];  // zeros behind the strip's last column
  const CodesInProgress& q = p.weight;
  const Scheme& scheme = q.scheme;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, warp = thread / kLanes;
  const float outer = scheme.has_outer_scale ? *q.outer_scale : 1.0f;
  float* errors = scratch + (std::int64_t{blockIdx.x} * kWarps + warp) * p.width * kLanes + lane;  // a column of lanes after the other
  const auto factor = [&](int r, int c) { return c < p.width && r <= c ? upper[(p.first + r) * q.k + p.first + c] : 0.0f; };
  for (std::int64_t base = std::int64_t{blockIdx.x} * kWarps; base < q.n; base += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t row = min(base + warp, q.n - 1);  // warps behind the last row do it again: all must meet at the barriers
    const float* x = p.values + row * q.k + p.first;
    const std::int64_t cell = q.grid.grid_row(row) * q.grid.cols + p.grid_col;
    const ScaleAndZero mine = scale_of_lane(p, extremes_of(x, p.width, 1.0 / p.width), cell, outer);
    const float scale = effective_scale(scheme, mine.scale.code, outer);
    double loss = 0.0;
    for (int strip = 0; strip < p.width; strip += kStrip) {
      float v[kStrip];
#pragma unroll
      for (int i = 0; i < kStrip; ++i) v[i] = strip + i < p.width ? x[strip + i] : 0.0f;
      for (int from = 0; from < strip; from += kDepth) {
        const int depth = min(kDepth, strip - from);
        __syncthreads();
        for (int i = thread; i < kDepth * kStrip; i += kWarps * kLanes)
          u[i / kStrip][i % kStrip] = i / kStrip < depth ? factor(from + i / kStrip, strip + i % kStrip) : 0.0f;
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < depth; ++r) {
          const float error = errors[(from + r) * kLanes];
#pragma unroll
          for (int i = 0; i < kStrip; ++i) v[i] -= error * u[r][i];
        }
      }
      __syncthreads();
      for (int i = thread; i < kStrip * 2 * kStrip; i += kWarps * kLanes) {
        const int r = i / (2 * kStrip), c = i % (2 * kStrip);
        own[r][c] = c < kStrip ? factor(strip + r, strip + c) : 0.0f;
      }
      __syncthreads();
      for (int c = 0; c < min(kStrip, p.width - strip); ++c) {  // the column at hand is v[0]
        const std::uint32_t code = quantize_element(scheme, v[0], scale, mine.zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
        const float error = (v[0] - dequantize_element(scheme, code, scale, mine.zero_point)) / own[c][c];
        loss += static_cast<double>(error) * static_cast<double>(error);
        errors[(strip + c) * kLanes] = error;
#pragma unroll
        for (int i = 0; i + 1 < kStrip; ++i) v[i] = v[i + 1] - error * own[c][c + 1 + i];
      }
    }
    if (base + warp < q.n) store_best(p, mine, loss, cell);
  }
}

/// Rows of a rectangle that one warp takes.
int rows_of_part(int width) { return std::max(1, 256 / width); }

/// How the rectangles of a grid column are cut into parts, and what is known of each.
struct Parts {
  std::int64_t tile_rows, parts;  ///< rows of a rectangle; parts of one
  int rows;                       ///< of a part
  Extremes* extremes;             ///< [rectangles, parts]
  double* losses;                 ///< [rectangles, parts, lanes]

  __device__ std::int64_t begin(std::int64_t rectangle, std::int64_t part) const { return rectangle * tile_rows + part * rows; }
  __device__ std::int64_t end(std::int64_t rectangle, std::int64_t part, std::int64_t n) const {
    return min(n, min((rectangle + 1) * tile_rows, begin(rectangle, part) + rows));
  }
  __device__ Extremes all(std::int64_t rectangle) const {
    Extremes e;
    for (std::int64_t part = 0; part < parts; ++part) {
      const Extremes& one = extremes[rectangle * parts + part];
      e.lowest = fminf(e.lowest, one.lowest);
      e.highest = fmaxf(e.highest, one.highest);
      e.mean += one.mean;
    }
    return e;
  }
};

Parts parts_of(const ScaleGrid& grid, std::int64_t n, int width, void* scratch) {
  Parts parts{};
  parts.tile_rows = grid.whole_tensor ? n : grid.tile_rows;
  parts.rows = rows_of_part(width);
  parts.parts = (std::min(parts.tile_rows, n) + parts.rows - 1) / parts.rows;
  parts.losses = static_cast<double*>(scratch);
  parts.extremes = reinterpret_cast<Extremes*>(parts.losses + grid.rows * parts.parts * kLanes);
  return parts;
}

__device__ inline std::int64_t this_warp() { return std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kLanes; }

__global__ void __launch_bounds__(kWarps* kLanes) find_extremes(const ScaleSearch p, const Parts parts) {
  const std::int64_t index = this_warp(), rectangle = index / parts.parts, part = index % parts.parts;
  if (rectangle >= p.weight.grid.rows) return;
  const double share =
      1.0 / (static_cast<double>(min(p.weight.n, (rectangle + 1) * parts.tile_rows) - rectangle * parts.tile_rows) * p.width);
  Extremes e;
  for (std::int64_t row = parts.begin(rectangle, part); row < parts.end(rectangle, part, p.weight.n); ++row) {
    const Extremes one = extremes_of(p.values + row * p.weight.k + p.first, p.width, share);
    e.lowest = fminf(e.lowest, one.lowest);
    e.highest = fmaxf(e.highest, one.highest);
    e.mean += one.mean;
  }
  if (threadIdx.x % kLanes == 0) parts.extremes[index] = e;
}

__global__ void __launch_bounds__(kWarps* kLanes) find_losses(const ScaleSearch p, const Parts parts, const double* importance) {
  const CodesInProgress& q = p.weight;
  const std::int64_t index = this_warp(), rectangle = index / parts.parts, part = index % parts.parts;
  if (rectangle >= q.grid.rows) return;
  const float outer = q.scheme.has_outer_scale ? *q.outer_scale : 1.0f;
  const ScaleAndZero mine = scale_of_lane(p, parts.all(rectangle), rectangle * q.grid.cols + p.grid_col, outer);
  const float scale = effective_scale(q.scheme, mine.scale.code, outer);
  double loss = 0.0;
  for (std::int64_t row = parts.begin(rectangle, part); row < parts.end(rectangle, part, q.n); ++row)
    for (int c = 0; c < p.width; ++c) {
      const float x = p.values[row * q.k + p.first + c];
      const std::uint32_t code = quantize_element(q.scheme, x, scale, mine.zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
      const double error = static_cast<double>(x) - static_cast<double>(dequantize_element(q.scheme, code, scale, mine.zero_point));
      loss += importance[p.first + c] * error * error;
    }
  parts.losses[index * kLanes + threadIdx.x % kLanes] = loss;
}

__global__ void __launch_bounds__(kWarps* kLanes) take_best(const ScaleSearch p, const Parts parts) {
  const std::int64_t rectangle = this_warp();
  if (rectangle >= p.weight.grid.rows) return;
  const float outer = p.weight.scheme.has_outer_scale ? *p.weight.outer_scale : 1.0f;
  const std::int64_t cell = rectangle * p.weight.grid.cols + p.grid_col;
  const ScaleAndZero mine = scale_of_lane(p, parts.all(rectangle), cell, outer);
  double loss = 0.0;
  for (std::int64_t part = 0; part < parts.parts; ++part)
    loss += parts.losses[(rectangle * parts.parts + part) * kLanes + threadIdx.x % kLanes];
  __syncwarp();
  store_best(p, mine, loss, cell);
}

__global__ void __launch_bounds__(kWarps* kLanes) put_scales(const ScaleSearch p, const void* scales, const std::uint8_t* zero_points) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.weight.grid.rows) return;
  const std::int64_t cell = row * p.weight.grid.cols + p.grid_col;
  store_scale_code(p.weight.scales, p.weight.scheme.scale, cell, load_scale_code(scales, p.weight.scheme.scale, row));
  if (p.weight.scheme.asymmetric) p.weight.zero_points[cell] = zero_points[row];
}

/// Thread blocks of the search by rounding: what fills the device, within a gigabyte for the lanes' errors.
std::int64_t search_blocks(std::int64_t n, int width) {
  const std::int64_t each = std::int64_t{kWarps} * width * kLanes * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t most = std::min<std::int64_t>(4 * multiprocessors(), std::max<std::int64_t>(1, (std::int64_t{1} << 30) / each));
  return std::min<std::int64_t>((n + kWarps - 1) / kWarps, most);
}

std::int64_t warps_for(std::int64_t count) { return (count + kWarps - 1) / kWarps; }

}  // namespace

int launch_put_scales(const ScaleSearch& search, const void* scales, const std::uint8_t* zero_points, Stream stream) {
  constexpr int kThreads = kWarps * kLanes;
  return launch_kernel(put_scales, (search.weight.grid.rows + kThreads - 1) / kThreads, kThreads, stream, search, scales, zero_points);
}

std::size_t search_scratch(std::int64_t n, int width) {
  return static_cast<std::size_t>(search_blocks(n, width) * kWarps * width * kLanes) * sizeof(float);
}

int launch_search_by_rounding(const ScaleSearch& search, const float* upper, float* scratch, Stream stream) {
  return launch_kernel(search_by_rounding, search_blocks(search.weight.n, search.width), kWarps * kLanes, stream, search, upper, scratch);
}

std::size_t rectangle_scratch(const ScaleGrid& grid, std::int64_t n, int width) {
  const Parts parts = parts_of(grid, n, width, nullptr);
  return static_cast<std::size_t>(grid.rows * parts.parts) * (kLanes * sizeof(double) + sizeof(Extremes));
}

int launch_search_rectangles(const ScaleSearch& search, const double* importance, void* scratch, Stream stream) {
  const ScaleGrid& grid = search.weight.grid;
  const Parts parts = parts_of(grid, search.weight.n, search.width, scratch);
  const std::int64_t blocks = warps_for(grid.rows * parts.parts);
  if (const int error = launch_kernel(find_extremes, blocks, kWarps * kLanes, stream, search, parts); error != 0) return error;
  if (const int error = launch_kernel(find_losses, blocks, kWarps * kLanes, stream, search, parts, importance); error != 0) return error;
  return launch_kernel(take_best, warps_for(grid.rows), kWarps * kLanes, stream, search, parts);
}

}  // namespace narrow::cuda
