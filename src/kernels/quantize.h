#pragma once
/// The quantize and dequantize kernels: plain problems, and the rows of their table.

#include <cstdint>
#include <span>

#include "device/cpu_features.h"
#include "narrow/codec.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// A part of the matrix: rows counted over all matrices, columns from a multiple of the scale tile and of 8.
struct Tile {
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t col_begin = 0, col_end = 0;
};

/// What a kernel learned of the values in passing.
struct TileStats {
  float amax = 0.0f;     ///< over the finite values
  float minimum = 0.0f;  ///< of the finite values and 0
  float maximum = 0.0f;
  bool has_nan = false;
  bool has_infinity = false;
};

struct QuantizeProblem {
  const void* x = nullptr;          ///< [rows, cols], columns contiguous
  DType dtype = DType::kF32;        ///< kF32, kF16, kBf16
  std::int64_t rows = 0, cols = 0;  ///< rows counted over all matrices
  std::int64_t row_stride = 0;      ///< in elements
  Scheme scheme;
  ScaleGrid grid;
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  std::uint64_t seed = 0;
  float outer_scale = 1.0f;

  std::uint8_t* codes = nullptr;  ///< [rows, row_bytes]
  std::size_t row_bytes = 0;
  void* scales = nullptr;               ///< [grid.rows, grid.cols] in the scheme's scale storage
  std::uint8_t* zero_points = nullptr;  ///< [grid.rows, grid.cols]
  bool scales_given = false;            ///< scales and zero points are inputs: static, or of the whole tensor
};

struct DequantizeProblem {
  const std::uint8_t* codes = nullptr;  ///< [rows, row_bytes]
  std::size_t row_bytes = 0;
  const void* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;
  float outer_scale = 1.0f;
  Scheme scheme;
  ScaleGrid grid;
  std::int64_t rows = 0, cols = 0;
  void* y = nullptr;  ///< [rows, cols], contiguous
  DType dtype = DType::kF32;
};

/// A row of the quantize table. Functions are pure: no allocation, no exception, no choice. Threads call them on
/// disjoint tiles; a tile holds whole scale rectangles unless the scales are given.
struct QuantizeKernel {
  const char* name;
  Isa isa;
  bool (*accepts)(const QuantizeProblem&);
  /// Statistics of a tile, scales untouched.
  TileStats (*measure)(const QuantizeProblem&, const Tile&);
  /// Writes codes and, unless given, scales and zero points. Returns the tile's statistics where it made the scales.
  TileStats (*run)(const QuantizeProblem&, const Tile&);
};

struct DequantizeKernel {
  const char* name;
  Isa isa;
  bool (*accepts)(const DequantizeProblem&);
  void (*run)(const DequantizeProblem&, const Tile&);
};

/// The rows, best first; the last is the reference, which takes everything.
std::span<const QuantizeKernel> quantize_kernels();
std::span<const DequantizeKernel> dequantize_kernels();

namespace reference {
extern const QuantizeKernel kQuantize;
extern const DequantizeKernel kDequantize;
}  // namespace reference

}  // namespace narrow
