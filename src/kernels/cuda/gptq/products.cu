/// Products of GPTQ in full fp32: C = A^T B of A [rows, m] and B [rows, n], with three ends.
/// Mapping: one thread block per 128 x 128 of C, 8 x 8 of it per thread; 16 rows of both operands at a time on their way into shared memory
///          while others are multiplied. Every 1024 rows the sums go on in fp64.
/// Bound:   fp32 multiply-adds.

#include <cuda_pipeline.h>

#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTile = 128, kDepth = 16, kStages = 3, kThreads = 256, kPart = 1024;
static_assert(kPart % kDepth == 0);

/// Rows that lie `pitch` apart.
struct Operand {
  const float* data;
  std::int64_t pitch;
  int width;
};

/// Where a thread's 8 rows or columns lie in the tile: two runs of four.
__device__ inline int place_in_tile(int group, int i) { return i / 4 * (kTile / 2) + group * 4 + i % 4; }

using Sums = float[8][8];

/// moment += sums, on and above the diagonal.
struct AddMoment {
  double* moment;
  int k;
  __device__ void take(const Sums& sums, int row, int col, int y, int x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = row + place_in_tile(y, i);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = col + place_in_tile(x, j);
        if (r <= c && c < k) moment[std::int64_t{r} * k + c] += static_cast<double>(sums[i][j]);
      }
    }
  }
  __device__ void finish(double*) {}
};

/// The sum over i, j of moment_ij (E^T E)_ij; what lies above the diagonal counts twice.
struct Energy {
  const double* moment;
  int k;
  double* parts;
  double sum = 0.0;
  __device__ void take(const Sums& sums, int row, int col, int y, int x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = row + place_in_tile(y, i);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = col + place_in_tile(x, j);
        if (r <= c && c < k) sum += (r == c ? 1.0 : 2.0) * moment[std::int64_t{r} * k + c] * static_cast<double>(sums[i][j]);
      }
    }
  }
  __device__ void finish(double* warps) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double all = 0.0;
    for (int i = 0; i < kThreads / 32; ++i) all += warps[i];
    parts[blockIdx.x] = all;
  }
};

/// c -= sums.
struct Subtract {
  float* c;
  std::int64_t pitch;
  int m, n;
  __device__ void take(const Sums& sums, int row, int col, int y, int x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = row + place_in_tile(y, i);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int at = col + place_in_tile(x, j);
        if (r < m && at < n) c[r * pitch + at] -= sums[i][j];
      }
    }
  }
  __device__ void finish(double*) {}
};

/// Starts the copies of kDepth rows of an operand's tile; what lies outside of it becomes zero. kCount neighbours at a time: four, where
/// pitch, width and address allow that.
template <int kCount>
__device__ inline void fetch(const Operand& from, int row, int rows, int col, float (*to)[kTile]) {
#pragma unroll
  for (int i = 0; i < kDepth * kTile / (kThreads * kCount); ++i) {
    const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * kCount, r = row + at / kTile, c = col + at % kTile;
    const bool inside = r < rows && c < from.width;
    const float* source = inside ? from.data + r * from.pitch + c : from.data;
    __pipeline_memcpy_async(&to[0][at], source, kCount * sizeof(float), inside ? 0 : kCount * sizeof(float));
  }
}

template <int kCount, typename End>
__global__ void __launch_bounds__(kThreads, 2) multiply(const Operand a, const Operand b, int rows, bool symmetric, End end) {
  __shared__ alignas(16) float as[kStages][kDepth][kTile], bs[kStages][kDepth][kTile];
  const int block = static_cast<int>(blockIdx.x), tiles = (b.width + kTile - 1) / kTile;
  int tile_row = block / tiles, tile_col = block % tiles;
  if (symmetric) {  // tiles on and above the diagonal, column by column: column t starts at t (t + 1) / 2
    tile_col = static_cast<int>((sqrt(8.0 * block + 1.0) - 1.0) / 2.0);
    while (tile_col * (tile_col + 1) / 2 > block) --tile_col;
    while ((tile_col + 1) * (tile_col + 2) / 2 <= block) ++tile_col;
    tile_row = block - tile_col * (tile_col + 1) / 2;
  }
  const int row = tile_row * kTile, col = tile_col * kTile;
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  const int steps = (rows + kDepth - 1) / kDepth;
  const auto start = [&](int step, int stage) {
    if (step < steps) {
      fetch<kCount>(a, step * kDepth, rows, row, as[stage]);
      fetch<kCount>(b, step * kDepth, rows, col, bs[stage]);
    }
    __pipeline_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) start(i, i);
  Sums sums = {};
  int stage = 0, next = kStages - 1;
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    start(step + kStages - 1, next);
    const float(*left)[kTile] = as[stage], (*right)[kTile] = bs[stage];
#pragma unroll
    for (int t = 0; t < kDepth; ++t) {
      float u[8], v[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(u + 4 * half) = *reinterpret_cast<const float4*>(&left[t][half * (kTile / 2) + y * 4]);
        *reinterpret_cast<float4*>(v + 4 * half) = *reinterpret_cast<const float4*>(&right[t][half * (kTile / 2) + x * 4]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(u[i], v[j], sums[i][j]);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = next + 1 == kStages ? 0 : next + 1;
    if ((step + 1) % (kPart / kDepth) == 0 || step + 1 == steps) {
      end.take(sums, row, col, y, x);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = 0.0f;
    }
  }
  end.finish(reinterpret_cast<double*>(as));  // its rows are used up
}

int tiles_of(int width) { return (width + kTile - 1) / kTile; }

template <typename End>
int launch_multiply(const Operand& a, const Operand& b, int rows, bool symmetric, const End& end, Stream stream) {
  const std::int64_t m = tiles_of(a.width), n = tiles_of(b.width), blocks = symmetric ? n * (n + 1) / 2 : m * n;
  const auto whole = [](const Operand& x) { return x.pitch % 4 == 0 && x.width % 4 == 0 && is_aligned(x.data, 16); };
  if (whole(a) && whole(b)) return launch_kernel(multiply<4, End>, blocks, kThreads, stream, a, b, rows, symmetric, end);
  return launch_kernel(multiply<1, End>, blocks, kThreads, stream, a, b, rows, symmetric, end);
}

}  // namespace

int launch_add_moment(const float* x, int rows, int k, double* moment, Stream stream) {
  const Operand operand{x, k, k};
  return launch_multiply(operand, operand, rows, true, AddMoment{moment, k}, stream);
}

std::int64_t energy_parts(int k) { return std::int64_t{tiles_of(k)} * (tiles_of(k) + 1) / 2; }

int launch_energy(const float* e, int rows, int k, const double* moment, double* parts, Stream stream) {
  const Operand operand{e, k, k};
  return launch_multiply(operand, operand, rows, true, Energy{moment, k, parts}, stream);
}

int launch_subtract_product(const float* a, int depth, int n, const float* b, int width, std::int64_t pitch, float* c, Stream stream) {
  return launch_multiply(Operand{a, n, n}, Operand{b, pitch, width}, depth, false, Subtract{c, pitch, n, width}, stream);
}

}  // namespace narrow::cuda
