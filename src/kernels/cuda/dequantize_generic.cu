/// Dequantizes anything by the definition: one thread per 8 neighbours of a row. The last row of the table.

#include "format/packing.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scaled_value.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) decode_groups(const DequantizeProblem p, std::int64_t groups_per_row) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = index / groups_per_row, begin = (index - row * groups_per_row) * 8;
  if (row >= p.rows) return;
  const std::uint8_t* codes = p.codes + static_cast<std::size_t>(row) * p.row_bytes;
  const float outer = p.scheme.has_outer_scale ? *p.outer_scale : 1.0f;
  const std::int64_t end = min(begin + 8, p.cols), cell_row = p.grid.grid_row(row) * p.grid.cols;
  std::int64_t cell = -1;
  float scale = 1.0f;
  std::int32_t zero_point = 0;
  for (std::int64_t col = begin; col < end; ++col) {
    if (p.scheme.has_scales() && cell_row + p.grid.grid_col(col) != cell) {
      cell = cell_row + p.grid.grid_col(col);
      scale = scaled_value(decode(p.scheme.scale, load_scale_code(p.scales, p.scheme.scale, cell)), outer);
      if (p.scheme.asymmetric) zero_point = p.zero_points[cell];
    }
    const std::uint32_t code = read_code(codes, col, p.scheme.element.bits);
    const float value =
        p.scheme.asymmetric ? static_cast<float>(static_cast<std::int32_t>(code) - zero_point) : decode(p.scheme.element, code);
    store_value(p.y, p.dtype, row * p.cols + col, scaled_value(value, scale));
  }
}

bool accepts(const DequantizeProblem&) { return true; }

int run(const DequantizeProblem& p, Stream stream) {
  const std::int64_t groups = (p.cols + 7) / 8;
  return launch_kernel(decode_groups, (groups * p.rows + kThreads - 1) / kThreads, kThreads, stream, p, groups);
}

}  // namespace

const DequantizeKernel kDequantizeGeneric{"cuda_dequantize_generic", accepts, run};

}  // namespace narrow::cuda
