#pragma once
/// The matmul kernels: plain problems, and the rows of their table.

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu_features.h"
#include "narrow/matmul.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// The activations [m, k]: values, or codes with scales.
struct ActivationView {
  bool quantized = false;
  // values
  const void* data = nullptr;   ///< columns contiguous
  DType dtype = DType::kF32;    ///< kF32, kF16, kBf16
  std::int64_t row_stride = 0;  ///< in elements
  // codes, canonical
  Scheme scheme;
  ScaleGrid grid;  ///< rows counted over all matrices
  const std::uint8_t* codes = nullptr;
  std::size_t row_bytes = 0;
  const void* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;
  float outer_scale = 1.0f;
};

/// The weight [n, k] in one of the layouts of narrow/matmul.h.
struct WeightView {
  WeightLayout layout = WeightLayout::kCanonical;
  Scheme scheme;   ///< an element of 32 bits: dense fp32
  ScaleGrid grid;  ///< of the canonical form
  const std::uint8_t* codes = nullptr;
  std::size_t row_bytes = 0;  ///< canonical rows
  const void* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;
  const std::int32_t* sums = nullptr;  ///< panels of integers: sum of the stored codes, [panel, k block, 64]
  float outer_scale = 1.0f;
};

/// y = convert(activate((scale_x * scale_w) * acc + bias) + residual), in this order, each step rounded to fp32.
struct MatmulEpilogue {
  const float* bias = nullptr;  ///< [n]
  Activation activation = Activation::kNone;
  const void* residual = nullptr;  ///< [m, n]
  DType residual_dtype = DType::kF32;
  std::int64_t residual_stride = 0;
  void* y = nullptr;  ///< [m, n]
  DType out = DType::kF32;
  std::int64_t y_stride = 0;
  float out_scale = 1.0f;
};

struct MatmulProblem {
  std::int64_t m = 0, n = 0, k = 0;
  ActivationView x;
  WeightView w;
  MatmulEpilogue epilogue;
  /// x, which is not codes, times the weight's values in fp32, summed in fp64 and rounded once: the order of sums does not show, and so
  /// neither instruction set nor device do; slower.
  bool in_fp64 = false;
};

/// A part of y. n_begin is a multiple of the row's n_step.
struct MatmulTile {
  std::int64_t m_begin = 0, m_end = 0;
  std::int64_t n_begin = 0, n_end = 0;
};

/// A row of the table. Functions are pure: no allocation, no exception, no choice. The driver first packs all activations
/// (rows split over threads), then runs tiles; neither split changes a bit of y.
struct MatmulKernel {
  const char* name;
  Isa isa;
  const char* takes;                      ///< one clause for `narrow kernels --explain`
  bool (*accepts)(const MatmulProblem&);  ///< looks at shapes, schemes and types, never at pointers
  std::int64_t m_step, n_step;            ///< the largest tile that run takes (but see n_most); n_step also aligns it
  std::size_t (*packed_bytes)(const MatmulProblem&);
  void (*begin)(const MatmulProblem&, std::byte* packed);  ///< once, before the rows are packed: constants of the product
  void (*pack)(const MatmulProblem&, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);
  std::size_t (*scratch_bytes)(const MatmulProblem&);  ///< per thread, aligned to 64
  void (*run)(const MatmulProblem&, const MatmulTile&, const std::byte* packed, std::byte* scratch);
  std::int64_t n_most = 0;  ///< where it is not 0: run also takes tiles this wide, a multiple of n_step, and prefers them
};

/// The rows, best first; the last is the reference, which takes everything.
std::span<const MatmulKernel> matmul_kernels();

namespace reference {
extern const MatmulKernel kMatmul;
}  // namespace reference

/// Whether products of this format are integer sums: plain integers and +-1.
constexpr bool is_exact_integer(const Format& format) {
  return (format.is_integer() && format.fraction_bits == 0) || format.codebook == Codebook::kSign;
}

/// Whether a scale changes along k.
constexpr bool varies_along_k(const Scheme& scheme, const ScaleGrid& grid) {
  return scheme.has_scales() && !grid.whole_tensor && grid.cols > 1;
}

}  // namespace narrow
