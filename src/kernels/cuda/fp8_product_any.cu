/// The fp8 product that runs on every device: D = epilogue(A * B^T), all scalings, groupings and formats.
/// Mapping: one thread per element of D, 16 x 16 of them per thread block; k in blocks of 128, each summed in fp32 and then scaled.
/// Bound:   arithmetic of the conversions; about a hundred times slower than the tensor cores. Meaning: reference/matmul.cc.

#include <algorithm>

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kSide = 16, kBlock = 128;

/// One fp8 code; e4m3 through fp16's exponent field, e5m2 as the upper half of an fp16.
__device__ inline float decode_fp8(std::uint8_t code, bool e5m2) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

/// The group of a row of D, its first row, and whether the row belongs to one.
struct RowGroup {
  int group;
  bool real;
};
__device__ inline RowGroup group_of_row(const ByteProblem& p, std::int64_t row) {
  if (p.grouping == ByteGrouping::kNone) return {0, true};
  const int group = static_cast<int>(row / p.m);
  if (p.grouping == ByteGrouping::kDepth) return {group, true};
  if (p.grouping == ByteGrouping::kRowCounts) return {group, row - std::int64_t{group} * p.m < p.offsets[group]};
  int found = 0;
  while (found < p.groups && p.offsets[found + 1] <= row) ++found;
  return {found, found < p.groups && row >= p.offsets[found]};
}

__device__ void multiply(const ByteProblem& p, std::int64_t row, int column) {
  const RowGroup group = group_of_row(p, row);
  if (!group.real) return;
  const bool depth = p.grouping == ByteGrouping::kDepth;
  const std::int64_t row_a = depth ? row - std::int64_t{group.group} * p.m : row,
                     row_b = (depth ? 0 : std::int64_t{group.group} * p.n) + column;
  const bool counts = p.grouping == ByteGrouping::kRowCounts;
  const std::int64_t scale_row_a = counts ? group.group * round_up_to_4(p.m) + row_a - std::int64_t{group.group} * p.m : row_a;
  const std::int64_t scale_row_b = (depth ? 0 : group.group * round_up_to_4(p.n)) + column;
  const int begin = depth ? p.offsets[group.group] : 0, end = depth ? p.offsets[group.group + 1] : p.k;
  const int k_blocks = (p.k + kBlock - 1) / kBlock, n_blocks = (p.n + kBlock - 1) / kBlock;
  float sum = 0.0f;
  for (int k = begin; k < end; k += kBlock) {
    float part = 0.0f;
    for (int i = k; i < min(k + kBlock, end); ++i)
      part = __fmaf_rn(decode_fp8(p.a[row_a * p.a_pitch + i], p.a_is_e5m2), decode_fp8(p.b[row_b * p.b_pitch + i], p.b_is_e5m2), part);
    float factor = 1.0f;
    if (!is_outer(p.scaling)) factor = p.a_scales[(k / kBlock) * p.a_scale_rows + scale_row_a];
    if (p.scaling == ByteScaling::kBlockTile)
      factor *= p.b_scales[(std::int64_t{depth ? 0 : group.group} * n_blocks + column / kBlock) * k_blocks + k / kBlock];
    if (p.scaling == ByteScaling::kBlockBlock) factor *= p.b_scales[(k / kBlock) * p.b_scale_rows + scale_row_b];
    sum = __fmaf_rn(part, factor, sum);
  }
  if (is_outer(p.scaling)) sum *= p.a_scales[row_a * p.a_scale_step] * p.b_scales[row_b * p.b_scale_step];
  const std::int64_t at = row * p.d_pitch + column;
  store_converted(p.epilogue, p.d, finish_value(p.epilogue, p.d, sum, column, at, row * p.n + column), at);
}

__global__ void fp8_product_any(const ByteProblem p, std::int64_t rows) {
  const int column = static_cast<int>(blockIdx.x) * kSide + static_cast<int>(threadIdx.x) % kSide;
  if (column >= p.n) return;
  const std::int64_t step = std::int64_t{gridDim.y} * kSide;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kSide + threadIdx.x / kSide; row < rows; row += step) multiply(p, row, column);
}

}  // namespace

int launch_fp8_product_any(const ByteProblem& problem, Stream stream) {
  const bool batched = problem.grouping == ByteGrouping::kRowCounts || problem.grouping == ByteGrouping::kDepth;
  const std::int64_t rows = std::int64_t{problem.m} * (batched ? problem.groups : 1), blocks_y = (rows + kSide - 1) / kSide;
  if (rows == 0 || problem.n == 0) return cudaSuccess;
  fp8_product_any<<<dim3(static_cast<unsigned>((problem.n + kSide - 1) / kSide),
                         static_cast<unsigned>(std::min<std::int64_t>(blocks_y, 65535))),
                    kSide * kSide, 0, stream>>>(problem, rows);
  return cudaGetLastError();
}

}  // namespace narrow::cuda
