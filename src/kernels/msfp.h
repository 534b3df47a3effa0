#pragma once
/// Products of two MSFP matrices: integer dot products of the mantissas of a box of 16, one exponent addition per box.
///
///   y[m, n] = sum over the boxes, in order, of  float(sum_i a[i] * w[i]) * min(2^ea * 2^ew, 2^127)
///
/// a, w are the signed mantissas (at most 7 bits), ea and ew the exponents of their unit. The integer sum is below 2^18 and exact,
/// its product with the power of two is exact within fp32's range, and the boxes are added in fp32: one rounding per box.

#include <cstdint>
#include <span>

#include "device/cpu_features.h"

namespace narrow {

inline constexpr std::int64_t kMsfpBox = 16;
inline constexpr std::int64_t kMsfpOutputs = 64;  ///< of a panel

/// Rows of packed activations against one panel of 64 outputs.
struct MsfpProblem {
  std::int64_t boxes = 0;
  const std::int8_t* a = nullptr;        ///< [m, boxes * 16]
  const float* a_scales = nullptr;       ///< [m, boxes]: 2^ea
  const std::int32_t* a_sums = nullptr;  ///< [m, boxes]: sum of the box's mantissas
  const std::uint32_t* w = nullptr;      ///< [boxes * 4][64]: four mantissas (bytes, k ascending from the lowest) of an output
  const float* w_scales = nullptr;       ///< [boxes][64]: 2^ew
  float* y = nullptr;                    ///< [m, 64]
};

/// A panel of kernels/panels.h: codes of a sign and magnitude_bits bits, in lanes of 32 bits.
struct MsfpPanel {
  const std::uint32_t* lanes = nullptr;  ///< [groups][stored_bits][64]
  std::int64_t groups = 0;               ///< of 32 k
  int magnitude_bits = 0;
  int stored_bits = 0;
};

struct MsfpKernel {
  const char* name;
  Isa isa;
  /// Writes MsfpProblem::w of a panel: [groups * 8][64].
  void (*unpack)(const MsfpPanel&, std::uint32_t* w);
  void (*run)(const MsfpProblem&, std::int64_t row_begin, std::int64_t row_end);
};

/// The rows, best first; the last is the reference.
std::span<const MsfpKernel> msfp_kernels();

namespace reference {
extern const MsfpKernel kMsfp;
}  // namespace reference

}  // namespace narrow
