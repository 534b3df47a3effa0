/// Rows of bits for products: packed from values, or copied from canonical codes; and the terms of the rows.
/// Mapping:  a warp per row. Packing: lane l has the elements l, l + 32, ... of a row, so that a ballot is a word of codes and the lane's
/// sum is
///           partial sum l of the contract (format/scale_rule.h).
/// Bound:    memory.     Meaning: kernels/reference/quantize.cc with int1:row, bit for bit.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "format/scale_rule.h"
#include "kernels/cuda/bit_product.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xFFFFFFFFu;

__device__ int lane_here() { return static_cast<int>(threadIdx.x % 32); }
__device__ std::int64_t row_here() { return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; }

/// The word of 32 codes at `word` of a row of `bytes` bytes and `cols` bits; zeros beyond.
__device__ std::uint32_t word_of(const std::uint8_t* row, std::int64_t word, std::int64_t bytes, std::int64_t cols, bool aligned) {
  const std::int64_t first = word * 4;
  if (word * 32 >= cols) return 0u;
  std::uint32_t value = 0;
  if (aligned && first + 4 <= bytes) {
    value = *reinterpret_cast<const std::uint32_t*>(row + first);
  } else {
    for (int i = 0; i < 4 && first + i < bytes; ++i) value |= static_cast<std::uint32_t>(row[first + i]) << (8 * i);
  }
  const std::int64_t real = cols - word * 32;
  return real < 32 ? value & ((1u << real) - 1u) : value;
}

__global__ void __launch_bounds__(kThreads) prepare_bits(const BitRows r) {
  const std::int64_t row = row_here();
  const int lane = lane_here();
  if (row >= padded_bit_rows(r.rows)) return;
  if (row >= r.rows) {
    if (lane == 0) r.terms[row] = {0, 0.0f};
    return;
  }
  const std::uint8_t* from = r.from + row * r.from_pitch;
  const std::int64_t bytes = (r.cols + 7) / 8, words = r.to != nullptr ? r.to_pitch / 4 : (r.cols + 31) / 32;
  const bool aligned = reinterpret_cast<std::uintptr_t>(from) % 4 == 0;
  int ones = 0;
  for (std::int64_t i = lane; i < words; i += 32) {
    const std::uint32_t word = word_of(from, i, bytes, r.cols, aligned);
    ones += __popc(word);
    if (r.to != nullptr) reinterpret_cast<std::uint32_t*>(r.to + row * r.to_pitch)[i] = word;
  }
  ones = __reduce_add_sync(kAll, ones);
  if (lane == 0) r.terms[row] = {-2 * ones, r.scales[row * r.scale_step]};
}

__global__ void __launch_bounds__(kThreads) unprepare_bits(const BitCanonical r) {
  const std::int64_t row = row_here();
  if (row >= r.rows) return;
  for (std::int64_t i = lane_here(); i < r.bytes; i += 32) r.to[row * r.bytes + i] = r.from[row * r.from_pitch + i];
  if (lane_here() == 0 && row < r.scale_count) r.scales[row] = r.terms[row].scale;
}

__device__ float value_of(float x) { return x; }
__device__ float value_of(__half x) { return __half2float(x); }
__device__ float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

/// A segment of 1024 elements of a row from column `begin` on, to the warp's shared memory; zeros beyond the row. Whole segments of aligned
/// rows by 16-byte loads, all of them in flight at once.
template <typename Value>
__device__ void load_segment(const Value* row, std::int64_t begin, std::int64_t cols, bool aligned, Value* segment) {
  const int lane = lane_here();
  __syncwarp();
  if (aligned && begin + kSumSegment <= cols) {
    constexpr int kLoads = kSumSegment * static_cast<int>(sizeof(Value)) / 16 / 32;
    uint4 words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words[i] = __ldg(reinterpret_cast<const uint4*>(row + begin) + i * 32 + lane);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) reinterpret_cast<uint4*>(segment)[i * 32 + lane] = words[i];
  } else {
    for (int i = lane; i < kSumSegment; i += 32) segment[i] = begin + i < cols ? row[begin + i] : Value(0.0f);
  }
  __syncwarp();
}

template <typename Value>
__global__ void __launch_bounds__(kThreads) pack_bits(const BitSource s) {
  __shared__ __align__(16) std::byte memory[kWarps * kSumSegment * sizeof(Value)];
  const std::int64_t row = row_here();
  const int lane = lane_here();
  if (row >= padded_bit_rows(s.rows)) return;
  if (row >= s.rows) {
    if (lane == 0) s.terms[row] = {0, 0.0f};
    return;
  }
  auto* segment = reinterpret_cast<Value*>(memory) + threadIdx.x / 32 * kSumSegment;
  const Value* x = static_cast<const Value*>(s.x) + row * s.row_stride;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  auto* to = reinterpret_cast<std::uint32_t*>(s.to + row * s.to_pitch);
  double total = 0.0;
  int ones = 0;
  float smallest = INFINITY;  // of the positive values of this lane
  std::int64_t begin = 0;
  for (; begin < s.cols; begin += kSumSegment) {
    load_segment(x, begin, s.cols, aligned, segment);
    double sum = 0.0;
    std::uint32_t mine = 0;  // lane j keeps word j of the segment
#pragma unroll 8
    for (int j = 0; j < kSumSegment / 32; ++j) {
      const float v = value_of(segment[j * 32 + lane]);
      const std::uint32_t word = __ballot_sync(kAll, v > 0.0f);
      if (lane == j) mine = word;
      if (v > 0.0f) smallest = fminf(smallest, v);
      if (fabsf(v) <= 3.402823466e38f) sum += static_cast<double>(fabsf(v));
    }
    for (int half = kSumLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAll, sum, half);
    total += sum;
    ones += __popc(mine);
    if ((begin / 32 + lane) * 4 < s.to_pitch) to[begin / 32 + lane] = mine;
  }
  for (std::int64_t word = begin / 32 + lane; word * 4 < s.to_pitch; word += 32) to[word] = 0u;
  const float scale = __shfl_sync(kAll, static_cast<float>(total / static_cast<double>(s.cols)), 0);
  // The code is 1 where x / scale, rounded, is above zero: x > scale * 2^-150. Only subnormal x can fail that.
  const double bound = static_cast<double>(scale) * 0x1p-150;
  if (__any_sync(kAll, static_cast<double>(smallest) <= bound)) {
    ones = 0;
    for (std::int64_t word = 0; word * 32 < s.cols; ++word) {
      const std::int64_t col = word * 32 + lane;
      const std::uint32_t codes = __ballot_sync(kAll, col<s.cols&& static_cast<double>(value_of(x[col]))> bound);
      if (lane == 0) to[word] = codes, ones += __popc(codes);
    }
  }
  ones = __reduce_add_sync(kAll, ones);
  if (lane == 0) s.terms[row] = {-2 * ones, scale};
}

std::int64_t blocks_for(std::int64_t rows) { return (padded_bit_rows(rows) + kWarps - 1) / kWarps; }

}  // namespace

int launch_prepare_bits(const BitRows& rows, Stream stream) {
  return launch_kernel(prepare_bits, blocks_for(rows.rows), kThreads, stream, rows);
}

int launch_unprepare_bits(const BitCanonical& rows, Stream stream) {
  return launch_kernel(unprepare_bits, (rows.rows + kWarps - 1) / kWarps, kThreads, stream, rows);
}

int launch_pack_bits(const BitSource& source, Stream stream) {
  const auto kernel =
      source.dtype == DType::kF32 ? pack_bits<float> : (source.dtype == DType::kF16 ? pack_bits<__half> : pack_bits<__nv_bfloat16>);
  return launch_kernel(kernel, blocks_for(source.rows), kThreads, stream, source);
}

}  // namespace narrow::cuda
