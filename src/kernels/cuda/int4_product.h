#pragma once
/// Products of int8 activations with int4 weights (W4A8), D[m, n] = epilogue(sum_k A[m, k] * B[n, k]): how prepared weights lie in memory,
/// plain problems on device pointers, and the rows that solve them.
///
/// A weight [n, k] is cut into cells of 32 rows x 32 columns, a row of cells after the other; n and k are padded with codes of zero. A cell
/// has 512 bytes, [lane][4 words]: word j of a lane is both registers of a B fragment of mma.m16n8k32 (PTX's layout), of row
/// 8 j + lane / 4 of the cell. The lower halves of its bytes are columns 4 (lane % 4) + {0, 1, 2, 3}, the upper halves 16 more.

#include <cstdint>
#include <span>

#include "kernels/cuda/byte_product.h"
#include "narrow/cuda.h"
#include "narrow/scheme.h"

namespace narrow::cuda {

constexpr int kCellSide = 32, kCellBytes = kCellSide * kCellSide / 2;
/// Columns that may share a scale, a multiple of 32: with so many, 16 times an int32 sum of products stays below 2^22 in size.
constexpr int kMostInt4Block = 256;

/// A prepared weight. Scales are fp32 [blocks, padded n]; zero points are bytes [blocks, padded n], the four of rows r, r + 8, r + 16, r +
/// 24 of a cell together.
struct Int4View {
  int n = 0, k = 0;
  int block = 0;  ///< columns that share a scale, a multiple of 32; 0: all of them
  const std::uint8_t* cells = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;  ///< of asymmetric schemes

  NARROW_HOST_DEVICE constexpr int padded_n() const { return (n + kCellSide - 1) / kCellSide * kCellSide; }
  NARROW_HOST_DEVICE constexpr int depth_cells() const { return (k + kCellSide - 1) / kCellSide; }
  NARROW_HOST_DEVICE constexpr int block_cells() const { return block == 0 ? depth_cells() : block / kCellSide; }
  NARROW_HOST_DEVICE constexpr int blocks() const { return block == 0 ? 1 : (k + block - 1) / block; }
  NARROW_HOST_DEVICE constexpr std::int64_t cell_bytes() const { return std::int64_t{padded_n() / kCellSide} * depth_cells() * kCellBytes; }
  /// The place of the zero point of a row among those of its block.
  NARROW_HOST_DEVICE static constexpr int zero_place(int row) { return row / 32 * 32 + row % 8 * 4 + row % 32 / 8; }
};

struct Int4Problem {
  int m = 0;
  const std::uint8_t* a = nullptr;  ///< signed codes; rows 16-byte aligned, zeros from k to a multiple of 16
  std::int64_t a_pitch = 0;
  const float* a_scales = nullptr;
  int a_scale_step = 0;  ///< 1: one scale per row; 0: one for all
  Int4View w;
  ByteEpilogue epilogue;  ///< out: kF32, kF16, kBf16, kI8
  void* d = nullptr;
  std::int64_t d_pitch = 0;
};

/// Tiles of D: Hopper's, then those for mma.sync (compute capability 8.0 and later).
struct Int4Config {
  const char* name;  ///< of the row
  bool is_hopper;
  int tile_m, tile_n;
};
std::span<const Int4Config> int4_configs();
/// Whether the configuration was compiled for the weight's scales.
bool has_int4_config(const Int4View& w, int config);
/// The configuration for a shape: few rows have their own; else the largest tiles that occupy the multiprocessors.
int choose_int4_config(int m, const Int4View& w, bool is_hopper, int multiprocessors);

int launch_int4_product(const Int4Problem& problem, int config, Stream stream);
/// Any device: without tensor cores, by dp4a.
int launch_int4_product_any(const Int4Problem& problem, Stream stream);

/// Canonical bytes of a weight, and its prepared form; one of the two is written.
struct Int4Canonical {
  Scheme scheme;
  ScaleGrid grid{};
  std::uint8_t* codes = nullptr;
  std::int64_t row_bytes = 0;
  void* scales = nullptr;
  std::uint8_t* zero_points = nullptr;
};
int launch_prepare_int4(const Int4Canonical& from, const Int4View& to, Stream stream);
int launch_unprepare_int4(const Int4View& from, const Int4Canonical& to, Stream stream);

}  // namespace narrow::cuda
