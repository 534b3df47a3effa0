/// Canonical codes, scales and zero points of four bits to the cells of int4_product.h and back, bit for bit.

#include <bit>

#include "format/scale_rule.h"
#include "kernels/cuda/int4_product.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 128;

/// The row and column of code i of 8 of a word; even ones are the lower halves of bytes.
struct CodePlace {
  int row, column;
};
__device__ CodePlace place_of(int cell_row, int cell_column, int lane, int word, int i) {
  return {cell_row * kCellSide + word * 8 + lane / 4, cell_column * kCellSide + i % 2 * 16 + lane % 4 * 4 + i / 2};
}

/// One thread per lane of a cell.
__global__ void write_cells(const Int4Canonical from, const Int4View to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, cell = index / 32;
  if (index * 16 >= to.cell_bytes()) return;
  const int lane = static_cast<int>(index % 32), cell_row = static_cast<int>(cell / to.depth_cells()),
            cell_column = static_cast<int>(cell % to.depth_cells());
  std::uint32_t words[4] = {};
  for (int i = 0; i < 32; ++i) {
    const CodePlace at = place_of(cell_row, cell_column, lane, i / 8, i % 8);
    if (at.row >= to.n || at.column >= to.k) continue;
    const std::uint32_t code = from.codes[at.row * from.row_bytes + at.column / 2] >> (at.column % 2 * 4) & 15u;
    words[i / 8] |= code << (i % 8 * 4);
  }
  reinterpret_cast<uint4*>(const_cast<std::uint8_t*>(to.cells))[index] = make_uint4(words[0], words[1], words[2], words[3]);
}

/// One thread per byte of canonical codes.
__global__ void write_codes(const Int4View from, const Int4Canonical to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / to.row_bytes;
  if (row >= from.n) return;
  const int column = static_cast<int>(index % to.row_bytes) * 2, r = static_cast<int>(row % kCellSide), k = column % kCellSide;
  const std::int64_t cell = row / kCellSide * from.depth_cells() + column / kCellSide;
  const int lane = r % 8 * 4 + k % 16 / 4;
  const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(from.cells + cell * kCellBytes)[lane * 4 + r / 8];
  const std::uint32_t low = word >> (k % 4 * 8 + k / 16 * 4) & 15u, high = word >> ((k + 1) % 4 * 8 + k / 16 * 4) & 15u;
  to.codes[index] = static_cast<std::uint8_t>(low | (column + 1 < from.k ? high << 4 : 0u));
}

/// One thread per row of the padded weight and block.
__global__ void write_scales(const Int4Canonical from, const Int4View to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int block = static_cast<int>(index / to.padded_n()), row = static_cast<int>(index % to.padded_n());
  if (block >= to.blocks()) return;
  const std::int64_t cell = from.grid.grid_row(min(row, to.n - 1)) * from.grid.cols + block;
  const_cast<float*>(to.scales)[index] = effective_scale(from.scheme, load_scale_code(from.scales, from.scheme.scale, cell), 1.0f);
  if (to.zeros != nullptr)
    const_cast<std::uint8_t*>(to.zeros)[std::int64_t{block} * to.padded_n() + Int4View::zero_place(row)] = from.zero_points[cell];
}

/// One thread per canonical scale.
__global__ void write_grid(const Int4View from, const Int4Canonical to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= to.grid.count()) return;
  const std::int64_t row = index / to.grid.cols * to.grid.tile_rows, at = index % to.grid.cols * from.padded_n();
  const float scale = from.scales[at + row];
  store_scale_code(to.scales, to.scheme.scale, index,
                   to.scheme.scale.bits == 32 ? std::bit_cast<std::uint32_t>(scale) : encode(to.scheme.scale, scale));
  if (from.zeros != nullptr) to.zero_points[index] = from.zeros[at + Int4View::zero_place(static_cast<int>(row))];
}

std::int64_t blocks_for(std::int64_t threads) { return (threads + kThreads - 1) / kThreads; }

}  // namespace

int launch_prepare_int4(const Int4Canonical& from, const Int4View& to, Stream stream) {
  if (const int error = launch_kernel(write_cells, blocks_for(to.cell_bytes() / 16), kThreads, stream, from, to)) return error;
  return launch_kernel(write_scales, blocks_for(std::int64_t{to.blocks()} * to.padded_n()), kThreads, stream, from, to);
}

int launch_unprepare_int4(const Int4View& from, const Int4Canonical& to, Stream stream) {
  if (const int error = launch_kernel(write_codes, blocks_for(from.n * to.row_bytes), kThreads, stream, from, to)) return error;
  return launch_kernel(write_grid, blocks_for(to.grid.count()), kThreads, stream, from, to);
}

}  // namespace narrow::cuda
