/// One pass over the bytes each; weights go through it once.

#include "kernels/cuda/byte_prepare.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch,
                         std::uint8_t flip) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / pitch, column = i % pitch;
  if (row < rows) to[i] = column < columns ? static_cast<std::uint8_t>(from[row * columns + column] ^ flip) : std::uint8_t{0};
}

__global__ void transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to,
                                 std::int64_t padded) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i % padded, group = i / padded % groups,
                     column = i / padded / groups;
  if (column < columns) to[i] = row < rows ? from[(group * rows + row) * columns + column] : 0.0f;
}

/// A warp per row.
__global__ void row_sums(const std::int8_t* codes, std::int64_t rows, std::int64_t columns, std::int64_t pitch, std::int32_t* sums) {
  const std::int64_t row = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  int sum = 0;
  for (std::int64_t k = threadIdx.x % 32 * 16; k < columns; k += 32 * 16) {  // zeros lie beyond the columns
    const int4 four = *reinterpret_cast<const int4*>(codes + row * pitch + k);
    sum = __dp4a(four.x, 0x01010101, __dp4a(four.y, 0x01010101, __dp4a(four.z, 0x01010101, __dp4a(four.w, 0x01010101, sum))));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

__global__ void signed_zero_points(const std::uint8_t* from, std::int64_t count, std::int32_t* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = std::int32_t{from[i]} - 128;
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

int launch_pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch,
                    std::uint8_t flip, Stream stream) {
  return launch_kernel(pad_rows, blocks_for(rows * pitch), kThreads, stream, from, rows, columns, to, pitch, flip);
}

int launch_row_sums(const std::int8_t* codes, std::int64_t rows, std::int64_t columns, std::int64_t pitch, std::int32_t* sums,
                    Stream stream) {
  return launch_kernel(row_sums, blocks_for(rows * 32), kThreads, stream, codes, rows, columns, pitch, sums);
}

int launch_signed_zero_points(const std::uint8_t* from, std::int64_t count, std::int32_t* to, Stream stream) {
  return launch_kernel(signed_zero_points, blocks_for(count), kThreads, stream, from, count, to);
}

int launch_transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to, std::int64_t padded,
                            Stream stream) {
  return launch_kernel(transpose_scales, blocks_for(columns * groups * padded), kThreads, stream, from, groups, rows, columns, to, padded);
}

}  // namespace narrow::cuda
