/// Bytes from one memory layout to another.
/// Mapping:  a thread block takes a tile of kTileRows x kTileCols (whole tiles of every layout), reads it in the order of the layout it
/// comes
///           from into shared memory (row-major there), and writes it in the order of the one it goes to; 16 bytes per access to global
///           memory. 16 neighbouring bytes are in a row (ROW, COL32, COL32_2R_4R4), a column (COL), or 4 rows of 4 columns (COL4_4R2_8C).
/// Requires: nothing; where addresses or sizes are not multiples of 16 the accesses are bytes.
/// Bound:    memory; 1 B read, 1 B written per element.
/// Meaning:  format/layout.h, as in ops/layout.cc.

#include "format/layout.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/fused.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_after.cuh"
#include "kernels/cuda/prefetch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTileRows = 32, kTileCols = 256, kThreads = 256, kPieces = kTileRows * kTileCols / 16, kPer = kPieces / kThreads;
// Results larger than this leave the second-level cache before they are read: their lines, and those of what they are made of, may go
// first.
constexpr std::int64_t kStreamedBytes = std::int64_t{32} << 20;
// Rows 4 bytes apart modulo the banks: a column's 16 bytes are in 16 banks, and pieces of 4 bytes stay aligned.
constexpr int kPitch = kTileCols + 4;

/// Where the 16 places of a piece lie in a tile: 16 neighbours in memory.
struct Place {
  int row, col;
};

/// The first place of piece `index` of a tile, in the order of memory.
template <Layout kLayout>
NARROW_HOST_DEVICE constexpr Place first_place(int index) {
  constexpr int kPerStripe = kTileRows * 32 / 16;  // a stripe of 32 columns is one run of memory
  const int stripe = index / kPerStripe * 32, piece = index % kPerStripe;
  switch (kLayout) {
    case Layout::kRow: return {index / (kTileCols / 16), index % (kTileCols / 16) * 16};
    case Layout::kCol: return {index % (kTileRows / 16) * 16, index / (kTileRows / 16)};
    case Layout::kCol32: return {piece / 2, stripe + piece % 2 * 16};
    case Layout::kCol4_4r2_8c: return {piece / 16 * 8 + piece / 8 % 2, stripe + piece / 2 % 4 * 8 + piece % 2 * 4};
    case Layout::kCol32_2r_4r4: return {piece / 64 * 32 + piece / 16 % 4 * 2 + piece / 4 % 4 * 8 + piece / 2 % 2, stripe + piece % 2 * 16};
  }
  return {};
}

/// The place of byte i of a piece.
template <Layout kLayout>
NARROW_HOST_DEVICE constexpr Place place(Place first, int i) {
  if (kLayout == Layout::kCol) return {first.row + i, first.col};
  if (kLayout == Layout::kCol4_4r2_8c) return {first.row + i / 4 * 2, first.col + i % 4};
  return {first.row, first.col + i};
}

template <Layout kLayout>
constexpr bool follows_map() {
  for (int index = 0; index < kTileRows * 32 / 16; ++index)
    for (int i = 0; i < 16; ++i) {
      const Place at = place<kLayout>(first_place<kLayout>(index), i);
      if (map_offset(kLayout, at.row, at.col, kTileRows, kTileCols) != index * 16 + i) return false;
    }
  return true;
}
static_assert(follows_map<Layout::kCol32>() && follows_map<Layout::kCol4_4r2_8c>() && follows_map<Layout::kCol32_2r_4r4>());

/// Where a piece of the tile at (tile_row, tile_col) starts, in bytes of the matrix.
template <Layout kLayout>
__device__ inline std::int64_t offset_of(int index, Place first, std::int64_t tile_row, std::int64_t tile_col, std::int64_t rows,
                                         std::int64_t cols) {
  if constexpr (kLayout == Layout::kRow) return (tile_row + first.row) * cols + tile_col + first.col;
  if constexpr (kLayout == Layout::kCol) return (tile_col + first.col) * rows + tile_row + first.row;
  constexpr int kPerStripe = kTileRows * 32 / 16;
  const std::int64_t stripe = padded(rows, layout_map(kLayout).tile_rows) * 32;
  return (tile_col / 32 + index / kPerStripe) * stripe + tile_row * 32 + index % kPerStripe * 16;
}

/// Bytes of a piece that the layout has: padding counts, and of ROW and COL the last piece may be cut.
template <Layout kLayout>
__device__ inline int length(Place first, std::int64_t rows_left, std::int64_t cols_left) {
  if constexpr (kLayout == Layout::kRow || kLayout == Layout::kCol) {
    if (first.row >= rows_left || first.col >= cols_left) return 0;
    const std::int64_t left = kLayout == Layout::kRow ? cols_left - first.col : rows_left - first.row;
    return left < 16 ? static_cast<int>(left) : 16;
  } else {
    return first.row < padded(rows_left, layout_map(kLayout).tile_rows) && first.col < padded(cols_left, 32) ? 16 : 0;
  }
}

__device__ inline int address(Place place) { return place.row * kPitch + place.col; }
__device__ inline std::uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : (i == 1 ? v.y : (i == 2 ? v.z : v.w)); }

template <Layout kFrom, Layout kTo>
__global__ void __launch_bounds__(kThreads) transform(const TransformProblem problem, std::int64_t tiles_down, std::int64_t tiles_across,
                                                      bool in_aligned, bool out_aligned, bool streams) {
  __shared__ __align__(16) std::uint8_t tile[kTileRows * kPitch];
  const std::int64_t rows = problem.rows, cols = problem.cols;
  const std::int64_t matrix = blockIdx.x / (tiles_down * tiles_across), in_matrix = blockIdx.x % (tiles_down * tiles_across);
  // Neighbouring thread blocks follow the memory that is written.
  const std::int64_t tile_row = (kTo == Layout::kRow ? in_matrix / tiles_across : in_matrix % tiles_down) * kTileRows;
  const std::int64_t tile_col = (kTo == Layout::kRow ? in_matrix % tiles_across : in_matrix / tiles_down) * kTileCols;
  const std::uint8_t* in = problem.in + matrix * map_size(kFrom, rows, cols);
  std::uint8_t* out = problem.out + matrix * map_size(kTo, rows, cols);
  if (blockIdx.x < kEarlyBlocks && in_aligned && !streams && tile_row + kTileRows <= rows && tile_col + kTileCols <= cols) {
    constexpr int kPiecesOfLine = 8;
    const int index = static_cast<int>(threadIdx.x) * kPiecesOfLine;
    if (index < kPieces) prefetch_lines(in + offset_of<kFrom>(index, first_place<kFrom>(index), tile_row, tile_col, rows, cols), 16, 0, 1);
  }
  wait_for_earlier_kernels();

  const std::int64_t rows_left = rows - tile_row, cols_left = cols - tile_col;
  const bool inner = rows_left >= kTileRows && cols_left >= kTileCols;

  uint4 pieces[kPer];
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const int index = k * kThreads + static_cast<int>(threadIdx.x);
    const Place first = first_place<kFrom>(index);
    const std::uint8_t* from = in + offset_of<kFrom>(index, first, tile_row, tile_col, rows, cols);
    const int count = inner ? 16 : length<kFrom>(first, rows_left, cols_left);
    if (in_aligned && count == 16) {
      pieces[k] = streams ? load_words_once(from) : load_words(from);
    } else {
      std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (i < count) words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
      pieces[k] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const Place first = first_place<kFrom>(k * kThreads + static_cast<int>(threadIdx.x));
    if constexpr (kFrom == Layout::kCol) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        tile[address(place<kFrom>(first, i))] = static_cast<std::uint8_t>(word_of(pieces[k], i / 4) >> (8 * (i % 4)));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) *reinterpret_cast<std::uint32_t*>(tile + address(place<kFrom>(first, 4 * i))) = word_of(pieces[k], i);
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const int index = k * kThreads + static_cast<int>(threadIdx.x);
    const Place first = first_place<kTo>(index);
    std::uint32_t words[4] = {0, 0, 0, 0};
    if (kTo == Layout::kCol || !inner) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const Place at = place<kTo>(first, i);
        if (at.row < rows_left && at.col < cols_left)
          words[i / 4] |= static_cast<std::uint32_t>(tile[address(at)]) << (8 * (i % 4));  // else padding: zero
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = *reinterpret_cast<const std::uint32_t*>(tile + address(place<kTo>(first, 4 * i)));
    }
    std::uint8_t* to = out + offset_of<kTo>(index, first, tile_row, tile_col, rows, cols);
    const int count = inner ? 16 : length<kTo>(first, rows_left, cols_left);
    if (out_aligned && count == 16) {
      const uint4 piece = make_uint4(words[0], words[1], words[2], words[3]);
      if (streams)
        __stcs(reinterpret_cast<uint4*>(to), piece);
      else
        *reinterpret_cast<uint4*>(to) = piece;
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (i < count) to[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }
}

/// Whether pieces of a layout start at multiples of 16 bytes.
bool has_aligned_pieces(const void* data, Layout layout, std::int64_t rows, std::int64_t cols) {
  if (!is_aligned(data, 16)) return false;
  if (layout == Layout::kRow) return cols % 16 == 0;
  return layout != Layout::kCol || rows % 16 == 0;
}

template <Layout kFrom, Layout kTo>
int launch(const TransformProblem& problem, Stream stream) {
  // Tiles cover the padding of every layout.
  const std::int64_t down = (padded(problem.rows, 32) + kTileRows - 1) / kTileRows,
                     across = (padded(problem.cols, 32) + kTileCols - 1) / kTileCols;
  return launch_after(transform<kFrom, kTo>, problem.matrices * down * across, kThreads, 0, stream, problem, down, across,
                      has_aligned_pieces(problem.in, kFrom, problem.rows, problem.cols),
                      has_aligned_pieces(problem.out, kTo, problem.rows, problem.cols),
                      problem.matrices * map_size(kTo, problem.rows, problem.cols) >= kStreamedBytes);
}

using Launch = int (*)(const TransformProblem&, Stream);

template <Layout kFrom>
constexpr Launch kTo[] = {launch<kFrom, Layout::kRow>, launch<kFrom, Layout::kCol>, launch<kFrom, Layout::kCol32>,
                          launch<kFrom, Layout::kCol4_4r2_8c>, launch<kFrom, Layout::kCol32_2r_4r4>};

}  // namespace

int launch_transform(const TransformProblem& problem, Stream stream) {
  const int to = static_cast<int>(problem.to);
  switch (problem.from) {
    case Layout::kRow: return kTo<Layout::kRow>[to](problem, stream);
    case Layout::kCol: return kTo<Layout::kCol>[to](problem, stream);
    case Layout::kCol32: return kTo<Layout::kCol32>[to](problem, stream);
    case Layout::kCol4_4r2_8c: return kTo<Layout::kCol4_4r2_8c>[to](problem, stream);
    case Layout::kCol32_2r_4r4: return kTo<Layout::kCol32_2r_4r4>[to](problem, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace narrow::cuda
