/// GPTQ's columns: rounded in order, one warp per row.
/// Mapping: a lane holds four neighbouring columns of the block; every lane computes the code of the column at hand, whose weight and scale
///          come by a shuffle, then changes its own four. U of the block is in shared memory, zeros below its diagonal.
/// Bound:   instructions of the encoding, about 200 per row and column.   Meaning: methods/gptq.cc, with its order of operations.

#include "format/packing.h"
#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kWarps = 16, kPer = kColumnBlock / 32;
constexpr unsigned kAll = 0xFFFFFFFFu;
static_assert(kPer == 4, "a lane reads its part of U as one float4");

__global__ void __launch_bounds__(kWarps * 32) round_columns(const ColumnsProblem p) {
  extern __shared__ float4 shared[];
  const CodesInProgress& q = p.weight;
  float* u = reinterpret_cast<float*>(shared);  // [kColumnBlock][kColumnBlock]
  for (int i = static_cast<int>(threadIdx.x); i < kColumnBlock * kColumnBlock; i += kWarps * 32) {
    const int r = i / kColumnBlock, c = i % kColumnBlock;
    const bool inside = r <= c && c < p.width;
    u[i] = p.upper == nullptr ? (r == c ? 1.0f : 0.0f) : (inside ? p.upper[(p.begin + r) * q.k + p.begin + c] : 0.0f);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float outer = q.scheme.has_outer_scale ? *q.outer_scale : 1.0f;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp; row < q.n; row += std::int64_t{gridDim.x} * kWarps) {
    float w[kPer], scales[kPer], errors[kPer];
    std::int32_t zeros[kPer];
    std::uint32_t codes[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int c = lane * kPer + i;
      w[i] = c < p.width ? p.work[row * q.k + p.begin + c] : 0.0f;
      scales[i] = 1.0f;
      errors[i] = 0.0f;
      zeros[i] = 0;
      codes[i] = 0;
      if (c < p.first || c >= p.last || !q.scheme.has_scales()) continue;
      const std::int64_t cell = q.grid.grid_row(row) * q.grid.cols + q.grid.grid_col(p.order[p.begin + c]);
      scales[i] = effective_scale(q.scheme, load_scale_code(q.scales, q.scheme.scale, cell), outer);
      if (q.scheme.asymmetric) zeros[i] = q.zero_points[cell];
    }
    for (int owner = p.first / kPer; owner * kPer < p.last; ++owner) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const int c = owner * kPer + i;
        if (c < p.first) continue;
        if (c >= p.last) break;
        const float value = __shfl_sync(kAll, w[i], owner), scale = __shfl_sync(kAll, scales[i], owner);
        const std::int32_t zero_point = __shfl_sync(kAll, zeros[i], owner);
        const std::uint32_t code = quantize_element(q.scheme, value, scale, zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
        const float error = (value - dequantize_element(q.scheme, code, scale, zero_point)) / u[c * kColumnBlock + c];
        if (lane == owner) {
          codes[i] = code;
          errors[i] = error;
        }
        const float4 part = shared[c * (kColumnBlock / 4) + lane];  // zeros before c; c itself is done
        w[0] -= error * part.x;
        w[1] -= error * part.y;
        w[2] -= error * part.z;
        w[3] -= error * part.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int c = lane * kPer + i;
      if (c >= p.first && c < p.last) {
        q.codes[row * q.k + p.order[p.begin + c]] = static_cast<std::uint16_t>(codes[i]);
        p.errors[c * q.n + row] = errors[i];
      }
      if (c >= p.last && c < p.width) p.work[row * q.k + p.begin + c] = w[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    permute(const float* from, std::int64_t count, std::int64_t k, const std::int32_t* order, float* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = from[i / k * k + order[i % k]];
}

/// Codes of 8 neighbours: bits bytes.
__global__ void __launch_bounds__(kThreads)
    pack_codes(const std::uint16_t* codes, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint8_t* packed) {
  const std::int64_t groups = (k + 7) / 8, index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / groups;
  if (row >= n) return;
  const std::int64_t begin = (index - row * groups) * 8;
  const int count = static_cast<int>(min(std::int64_t{8}, k - begin));
  std::uint8_t* out = packed + static_cast<std::size_t>(row) * row_bytes + begin / 8 * bits;
  std::uint32_t window = 0;
  int held = 0;
  for (int i = 0; i < count; ++i) {
    window |= std::uint32_t{codes[row * k + begin + i]} << held;
    for (held += bits; held >= 8; held -= 8, window >>= 8) *out++ = static_cast<std::uint8_t>(window);
  }
  if (held > 0) *out = static_cast<std::uint8_t>(window);
}

__global__ void __launch_bounds__(kThreads)
    unpack_codes(const std::uint8_t* packed, std::int64_t count, std::int64_t k, int bits, std::size_t row_bytes, std::uint16_t* codes) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) codes[i] = static_cast<std::uint16_t>(read_code(packed + static_cast<std::size_t>(i / k) * row_bytes, i % k, bits));
}

__global__ void __launch_bounds__(kThreads) subtract(const float* x, std::int64_t count, float* y) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] -= x[i];
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

int launch_round_columns(const ColumnsProblem& p, Stream stream) {
  constexpr int kShared = kColumnBlock * kColumnBlock * static_cast<int>(sizeof(float));
  if (const int error = cudaFuncSetAttribute(round_columns, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared); error != 0) return error;
  constexpr std::int64_t kPerMultiprocessor = 3;  // what shared memory allows
  const std::int64_t blocks = std::min<std::int64_t>((p.weight.n + kWarps - 1) / kWarps, kPerMultiprocessor * multiprocessors());
  if (blocks == 0) return cudaSuccess;
  round_columns<<<static_cast<unsigned>(blocks), kWarps * 32, kShared, stream>>>(p);
  return cudaGetLastError();
}

int launch_permute(const float* from, std::int64_t n, std::int64_t k, const std::int32_t* order, float* to, Stream stream) {
  return launch_kernel(permute, blocks_for(n * k), kThreads, stream, from, n * k, k, order, to);
}

int launch_pack_codes(const std::uint16_t* codes, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint8_t* packed,
                      Stream stream) {
  return launch_kernel(pack_codes, blocks_for((k + 7) / 8 * n), kThreads, stream, codes, n, k, bits, row_bytes, packed);
}

int launch_unpack_codes(const std::uint8_t* packed, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint16_t* codes,
                        Stream stream) {
  return launch_kernel(unpack_codes, blocks_for(n * k), kThreads, stream, packed, n * k, k, bits, row_bytes, codes);
}

int launch_subtract(const float* x, std::int64_t count, float* y, Stream stream) {
  return launch_kernel(subtract, blocks_for(count), kThreads, stream, x, count, y);
}

}  // namespace narrow::cuda
