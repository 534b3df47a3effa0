#pragma once
/// Schemes: a number format plus the scaling that goes with it, written as one string everywhere:
///   FORMAT[:GRANULARITY][:asym][:scale=FORMAT]     int8:row  int4:block128:asym  fp8_e4m3:128x128  msfp12  nvfp4

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/format.h"

namespace narrow {

/// The longest edge that a scheme's block can have; what is read from strings and files is held to it.
inline constexpr std::int64_t kLargestBlock = std::int64_t{1} << 30;

/// One scale per rows x cols rectangle of a matrix; 0 stands for the whole dimension.
/// A last, shorter rectangle is legal. Of a tensor of rank 3 or 4 every matrix (last two dimensions) starts anew.
struct Granularity {
  enum class Kind : std::uint8_t { kNone, kTensor, kRectangle };
  Kind kind = Kind::kTensor;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  static constexpr Granularity none() { return {Kind::kNone, 0, 0}; }      ///< no scale: a cast
  static constexpr Granularity tensor() { return {Kind::kTensor, 0, 0}; }  ///< one scale, all matrices together
  static constexpr Granularity row() { return {Kind::kRectangle, 1, 0}; }
  static constexpr Granularity col() { return {Kind::kRectangle, 0, 1}; }
  static constexpr Granularity block(std::int64_t cols) { return {Kind::kRectangle, 1, cols}; }
  static constexpr Granularity block(std::int64_t rows, std::int64_t cols) { return {Kind::kRectangle, rows, cols}; }

  friend constexpr bool operator==(const Granularity&, const Granularity&) = default;
};

/// How a rectangle's statistics become its scale.
enum class ScaleRule : std::uint8_t {
  kLargest,         ///< s = amax / largest code value; asymmetric: s = (hi - lo) / (2^b - 1)
  kSharedExponent,  ///< s = 2^(floor(log2 amax) - floor(log2 largest)): MX and MSFP
  kMeanAbsolute,    ///< s = mean |x|: int1
};

/// What a tensor is quantized to. A plain value: no pointer, usable on host and device.
///   real = scale * outer_scale * (decode(element, code) - zero_point)
struct Scheme {
  Format element;
  Granularity granularity;
  Format scale = kFp32;  ///< the format in which scales are stored, and by which they are rounded
  ScaleRule rule = ScaleRule::kLargest;
  bool asymmetric = false;       ///< element is then the unsigned format, with one zero point per scale
  bool has_outer_scale = false;  ///< one fp32 scale for the tensor over all scales (nvfp4)
  bool is_msfp = false;          ///< zero boxes have the exponent code 0, others at least 1

  /// Throws InvalidArgument pointing at the part of the text that is wrong.
  static Scheme parse(std::string_view text);
  /// The canonical string; parse(to_string()) gives this scheme back.
  std::string to_string() const;

  constexpr bool has_scales() const { return granularity.kind != Granularity::Kind::kNone; }

  friend constexpr bool operator==(const Scheme&, const Scheme&) = default;
};

/// Names that fix format and scaling together.
struct BlockFormat {
  std::string_view name;
  Scheme scheme;
};
const std::vector<BlockFormat>& block_formats();

/// Every scheme of the numerics contract once, in canonical form: what tests, benchmarks and `narrow` iterate over.
const std::vector<Scheme>& standard_schemes();

/// How scales lie over a tensor: rows of the scale grid are counted over all matrices.
struct ScaleGrid {
  std::int64_t rows = 0;              ///< grid rows in all
  std::int64_t cols = 0;              ///< grid columns
  std::int64_t tile_rows = 1;         ///< matrix rows that share a grid row
  std::int64_t tile_cols = 1;         ///< columns that share a grid column
  std::int64_t matrix_rows = 0;       ///< rows of one matrix: tiles start anew with each
  std::int64_t tiles_per_matrix = 0;  ///< grid rows of one matrix
  bool whole_tensor = false;

  NARROW_HOST_DEVICE constexpr std::int64_t count() const { return rows * cols; }
  /// The grid row of a row counted over all matrices.
  NARROW_HOST_DEVICE constexpr std::int64_t grid_row(std::int64_t row) const {
    return whole_tensor ? 0 : (row / matrix_rows) * tiles_per_matrix + (row % matrix_rows) / tile_rows;
  }
  NARROW_HOST_DEVICE constexpr std::int64_t grid_col(std::int64_t col) const { return whole_tensor ? 0 : col / tile_cols; }
};

}  // namespace narrow
