#pragma once
/// GPTQ's kernels: second moments of inputs, the matrix that is factored, scales searched, columns rounded in order, errors carried to the
/// columns after them, codes and scales refined. Products are fp32 with one rounding per step, sums of more than 1024 rows fp64, all in a
/// fixed order: the same bits every time. They return CUDA's error code.

#include <cstddef>
#include <cstdint>

#include "narrow/cuda.h"
#include "narrow/scheme.h"

namespace narrow::cuda {

/// Columns whose errors are carried to the columns after them in one product.
constexpr int kColumnBlock = 128;

/// moment [k, k] += x^T x of fp32 rows [rows, k], on and above the diagonal; what is below is not touched.
int launch_add_moment(const float* x, int rows, int k, double* moment, Stream stream);

/// Numbers that launch_energy writes.
std::int64_t energy_parts(int k);
/// Parts whose sum is tr(E M E^T) for fp32 e [rows, k] and a moment as above.
int launch_energy(const float* e, int rows, int k, const double* moment, double* parts, Stream stream);

/// The k elements of the diagonal.
int launch_diagonal(const double* moment, std::int64_t k, double* diagonal, Stream stream);

/// The matrix whose Cholesky factor is wanted: H = unit * moment in the order of `order`, damping added to the diagonal (to 1 where that is
/// zero: a dead column stands alone), rows and columns reversed. Symmetric, [k, k].
int launch_backwards(const double* moment, std::int64_t k, const std::int32_t* order, double unit, double damping, double* backwards,
                     Stream stream);
/// upper [k, k] = the inverse factor read backwards in fp32, zeros below the diagonal. `inverse`: lower triangular by rows, its other half
/// is not read. bad: set to 1 where a value is not finite.
int launch_take_upper(const double* inverse, std::int64_t k, float* upper, std::int32_t* bad, Stream stream);

/// to [n, k] = columns of `from` in the order of `order`.
int launch_permute(const float* from, std::int64_t n, std::int64_t k, const std::int32_t* order, float* to, Stream stream);

/// H = unit * moment, damping added to the diagonal, in fp32: symmetric, [k, k].
int launch_damped(const double* moment, std::int64_t k, double unit, double damping, float* h, Stream stream);

/// A weight on its way into codes.
struct CodesInProgress {
  Scheme scheme;
  ScaleGrid grid;
  std::int64_t n = 0, k = 0;
  void* scales = nullptr;  ///< [grid.rows, grid.cols] in the scheme's storage
  std::uint8_t* zero_points = nullptr;
  const float* outer_scale = nullptr;  ///< of schemes that have one
  std::uint16_t* codes = nullptr;      ///< [n, k], in the weight's order
};

/// Columns first .. last - 1 of a block of `width` columns that starts at `begin` (first and last count from there), one after the other:
///   e = (w_c - q_c) / U_cc,  w_j -= e U_cj for the block's columns j after c.
/// What is left of the block is written back.
struct ColumnsProblem {
  CodesInProgress weight;
  float* work = nullptr;                ///< [n, k], in the factor's order
  const float* upper = nullptr;         ///< U, [k, k]; none: the identity
  const std::int32_t* order = nullptr;  ///< [k]
  float* errors = nullptr;              ///< e, [width, n]
  std::int64_t begin = 0;
  int width = kColumnBlock, first = 0, last = kColumnBlock;
};
int launch_round_columns(const ColumnsProblem& problem, Stream stream);

/// c [n, width] -= a^T b of a [depth, n] and b [depth, width]; rows of b and c lie `pitch` apart. A block's errors are carried so to all
/// columns after it.
int launch_subtract_product(const float* a, int depth, int n, const float* b, int width, std::int64_t pitch, float* c, Stream stream);

/// The rectangles of one grid column, whose scales are to be chosen: columns first .. first + width - 1 of `values`.
struct ScaleSearch {
  CodesInProgress weight;         ///< its codes are not used
  const float* values = nullptr;  ///< [n, k]
  std::int64_t first = 0, grid_col = 0;
  int width = 0;
};
/// Writes the scales (and zero points) of a part [n, width], [grid.rows] of them, into the grid column.
int launch_put_scales(const ScaleSearch& search, const void* scales, const std::uint8_t* zero_points, Stream stream);
/// Each scale becomes the candidate (format/scale_candidates.h) with the least sum of e^2 when its rectangle, columns of one row, is
/// rounded in order by `upper`; ties go to the scale that is there. scratch: search_scratch bytes.
std::size_t search_scratch(std::int64_t n, int width);
int launch_search_by_rounding(const ScaleSearch& search, const float* upper, float* scratch, Stream stream);
/// The same with the least sum of importance[column] (x - q(x))^2 over rectangles of any number of rows; importance has a number for each
/// of the k columns. scratch: rectangle_scratch bytes.
std::size_t rectangle_scratch(const ScaleGrid& grid, std::int64_t n, int width);
int launch_search_rectangles(const ScaleSearch& search, const double* importance, void* scratch, Stream stream);
/// importance [k] = 1 / U_cc^2, by the weight's columns.
int launch_importance(const float* upper, std::int64_t k, const std::int32_t* order, double* importance, Stream stream);

/// Learned rounding: methods/refine.h over there. Lowers tr(E H E^T), E = w - q, by coordinate descent on codes and, where a row's blocks
/// have scales of their own, on these.
struct RefineProblem {
  CodesInProgress weight;
  const float* h = nullptr;         ///< [k, k], symmetric
  const float* gradient = nullptr;  ///< E H, [n, k]
  float* scratch = nullptr;         ///< refine_scratch bytes
  int sweeps = 1;
};
std::size_t refine_scratch(std::int64_t n, std::int64_t k);
int launch_refine(const RefineProblem& problem, Stream stream);
/// errors [k, n] = q - w, turned.
int launch_turned_errors(const CodesInProgress& weight, const float* w, float* errors, Stream stream);

/// Packed codes as one number each; and the other way round.
int launch_unpack_codes(const std::uint8_t* packed, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint16_t* codes,
                        Stream stream);
int launch_pack_codes(const std::uint16_t* codes, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint8_t* packed,
                      Stream stream);

/// y -= x.
int launch_subtract(const float* x, std::int64_t count, float* y, Stream stream);

}  // namespace narrow::cuda
