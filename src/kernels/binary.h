#pragma once
/// Products of int1 matrices: the problem, the packed weights, and the rows of their table.
///   sum_k a[m,k] w[n,k] = k - 2 * popcount(a[m,:] ^ w[n,:]),  a, w = +-1 as the bits 1 and 0

#include <cstdint>
#include <span>

#include "device/cpu_features.h"

namespace narrow {

/// Outputs of a panel. Weights lie in the panels of kernels/panels.h: [panel][word of 32 k][output], one bit per weight.
inline constexpr std::int64_t kBinaryPanel = 64;

struct BinaryProblem {
  std::int64_t m = 0, n = 0;
  std::int64_t k = 0;                ///< bits that count; those beyond are 0 in a and w
  std::int64_t words = 0;            ///< 32-bit words of a row
  const std::uint32_t* a = nullptr;  ///< [m, a_stride] words
  std::int64_t a_stride = 0;
  const std::uint32_t* w = nullptr;  ///< [panels, words, kBinaryPanel]; outputs beyond n are any
  const float* a_scales = nullptr;   ///< [m]; null: y is int32
  const float* w_scales = nullptr;   ///< [n]
  void* y = nullptr;                 ///< [m, y_stride]: int32 sums, or fp32 sum * (a_scale * w_scale)
  std::int64_t y_stride = 0;
};

/// A row of the table. run computes rows [row_begin, row_end) of the panels [panel_begin, panel_end). Pure, exact.
struct BinaryKernel {
  const char* name;
  Isa isa;
  bool (*accepts)(const BinaryProblem&);
  void (*run)(const BinaryProblem&, std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end);
};

/// The rows, best first; the last is the reference, which takes everything.
std::span<const BinaryKernel> binary_kernels();

namespace reference {
extern const BinaryKernel kBinary;
}  // namespace reference

}  // namespace narrow
