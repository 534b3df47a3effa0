/// The W4A8 product that runs on every device: D = epilogue(A * B^T).
/// Mapping: one thread per element of D, 16 x 16 of them per thread block; a cell's row at a time, dp4a.
/// Bound:   loads, far from the tensor cores. Meaning: reference/matmul.cc, bit for bit.

#include <algorithm>

#include "kernels/cuda/int4_decode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product_finish.cuh"

namespace narrow::cuda {
namespace {

constexpr int kSide = 16;

/// The sum over one cell.
template <bool kZeros>
__device__ int cell_sum(const Int4Problem& p, const std::uint8_t* row, int column, int cell, std::uint32_t zero) {
  const std::int64_t number = std::int64_t{column / kCellSide} * p.w.depth_cells() + cell;
  const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(p.w.cells + number * kCellBytes) + column % 8 * 16 + column % 32 / 8;
  const bool has_upper = cell * kCellSide + 16 < p.w.k;
  int sum = 0;
  for (int quarter = 0; quarter < 4; ++quarter) {
    const int* x = reinterpret_cast<const int*>(row + cell * kCellSide + quarter * 4);
    std::uint32_t low, high;
    Int4Decoder<kZeros>::fragments(words[quarter * 4], zero, low, high);
    sum = __dp4a(x[0], static_cast<int>(low), sum);
    if (has_upper) sum = __dp4a(x[4], static_cast<int>(high), sum);
  }
  return sum;
}

template <bool kZeros>
__global__ void int4_product_any(const Int4Problem p) {
  using Decoder = Int4Decoder<kZeros>;
  const int column = static_cast<int>(blockIdx.x) * kSide + static_cast<int>(threadIdx.x) % kSide;
  if (column >= p.w.n) return;
  const bool whole = p.w.block == 0;
  for (int row = static_cast<int>(blockIdx.y) * kSide + static_cast<int>(threadIdx.x) / kSide; row < p.m;
       row += static_cast<int>(gridDim.y) * kSide) {
    float sum = 0.0f;
    for (int block = 0, cell = 0; block < p.w.blocks(); ++block) {
      const std::int64_t at = std::int64_t{block} * p.w.padded_n();
      const std::uint32_t zero = kZeros ? p.w.zeros[at + Int4View::zero_place(column)] * 0x01010101u : 0u;
      int part = 0;
      for (const int end = min(cell + p.w.block_cells(), p.w.depth_cells()); cell < end; ++cell)
        part += cell_sum<kZeros>(p, p.a + row * p.a_pitch, column, cell, zero);
      sum = whole ? Decoder::whole_sum(part) : __fmaf_rn(Decoder::whole_sum(part), p.w.scales[at + column], sum);
    }
    const float scale = p.a_scales[row * p.a_scale_step];
    const float v = __fmul_rn(sum, whole ? __fmul_rn(scale, p.w.scales[column]) : scale);
    finish_product(p.epilogue, p.d, v, row, column, p.w.n, row * p.d_pitch + column);
  }
}

}  // namespace

int launch_int4_product_any(const Int4Problem& p, Stream stream) {
  if (p.m == 0 || p.w.n == 0) return cudaSuccess;
  const auto kernel = p.w.zeros != nullptr ? int4_product_any<true> : int4_product_any<false>;
  kernel<<<dim3(static_cast<unsigned>((p.w.n + kSide - 1) / kSide), static_cast<unsigned>(std::min((p.m + kSide - 1) / kSide, 65535))),
           kSide * kSide, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace narrow::cuda
