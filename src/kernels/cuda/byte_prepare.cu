/// One pass over the bytes each; weights go through it once.

#include "kernels/cuda/byte_prepare.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / pitch, column = i % pitch;
  if (row < rows) to[i] = column < columns ? from[row * columns + column] : std::uint8_t{0};
}

__global__ void transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to,
                                 std::int64_t padded) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i % padded, group = i / padded % groups,
                     column = i / padded / groups;
  if (column < columns) to[i] = row < rows ? from[(group * rows + row) * columns + column] : 0.0f;
}

std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

int launch_pad_rows(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to, std::int64_t pitch,
                    Stream stream) {
  return launch_kernel(pad_rows, blocks_for(rows * pitch), kThreads, stream, from, rows, columns, to, pitch);
}

int launch_transpose_scales(const float* from, std::int64_t groups, std::int64_t rows, std::int64_t columns, float* to, std::int64_t padded,
                            Stream stream) {
  return launch_kernel(transpose_scales, blocks_for(columns * groups * padded), kThreads, stream, from, groups, rows, columns, to, padded);
}

}  // namespace narrow::cuda
