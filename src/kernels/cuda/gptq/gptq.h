#pragma once
/// GPTQ's kernels: second moments of inputs, the matrix that is factored, columns rounded in order, errors carried to the columns after
/// them. Products are fp32 with one rounding per step, sums of more than 1024 rows fp64, all in a fixed order: the same bits every time.
/// They return CUDA's error code.

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

/// A block of columns begin .. begin + width - 1 of the work, rounded one after the other:
///   e = (w_c - q_c) / U_cc,  w_j -= e U_cj for the block's columns j after c.
struct ColumnsProblem {
  Scheme scheme;
  ScaleGrid grid;
  std::int64_t n = 0, k = 0;
  const float* work = nullptr;          ///< [n, k], in the factor's order
  const float* upper = nullptr;         ///< U, [k, k]
  const std::int32_t* order = nullptr;  ///< [k]
  const void* scales = nullptr;         ///< [grid.rows, grid.cols] in the scheme's storage
  const std::uint8_t* zero_points = nullptr;
  const float* outer_scale = nullptr;  ///< of schemes that have one
  std::uint16_t* codes = nullptr;      ///< [n, k], in the weight's order
  float* errors = nullptr;             ///< e, [kColumnBlock, n]
  std::int64_t begin = 0;
  int width = kColumnBlock;
};
int launch_round_columns(const ColumnsProblem& problem, Stream stream);

/// work[:, first..] -= errors^T * upper[first - kColumnBlock .., first..]: a whole block's errors, to all columns after it.
int launch_carry_errors(const float* errors, int n, const float* upper, int k, int first, float* work, Stream stream);

/// Codes [n, k] packed as quantized tensors have them.
int launch_pack_codes(const std::uint16_t* codes, std::int64_t n, std::int64_t k, int bits, std::size_t row_bytes, std::uint8_t* packed,
                      Stream stream);

/// y -= x.
int launch_subtract(const float* x, std::int64_t count, float* y, Stream stream);

}  // namespace narrow::cuda
