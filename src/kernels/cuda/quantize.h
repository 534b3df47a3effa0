#pragma once
/// The CUDA rows of quantize and dequantize: plain problems on device pointers. No CUDA header is needed to call them.

#include <cstddef>
#include <cstdint>
#include <span>

#include "narrow/cuda.h"
#include "narrow/scheme.h"

namespace narrow::cuda {

/// All pointers are device memory.
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

  std::uint8_t* codes = nullptr;  ///< [rows, row_bytes]
  std::size_t row_bytes = 0;
  void* scales = nullptr;               ///< [grid.rows, grid.cols] in the scheme's scale storage
  std::uint8_t* zero_points = nullptr;  ///< [grid.rows, grid.cols]
  float* outer_scale = nullptr;         ///< one, written unless given

  const float* given_scales = nullptr;  ///< static: one fp32 per cell
  const std::uint8_t* given_zero_points = nullptr;
  const float* given_outer_scale = nullptr;
  std::uint32_t* flags = nullptr;  ///< bit 0: NaN seen, bit 1: infinity seen
  void* workspace = nullptr;
};

struct DequantizeProblem {
  const std::uint8_t* codes = nullptr;
  std::size_t row_bytes = 0;
  const void* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;
  const float* outer_scale = nullptr;
  Scheme scheme;
  ScaleGrid grid;
  std::int64_t rows = 0, cols = 0;
  void* y = nullptr;  ///< [rows, cols], contiguous
  DType dtype = DType::kF32;
};

/// A row of the table. launch enqueues and returns CUDA's error code (0: none); it never waits or allocates.
struct QuantizeKernel {
  const char* name;
  bool (*accepts)(const QuantizeProblem&);
  std::size_t (*workspace)(const QuantizeProblem&);
  int (*launch)(const QuantizeProblem&, Stream);
};

struct DequantizeKernel {
  const char* name;
  bool (*accepts)(const DequantizeProblem&);
  int (*launch)(const DequantizeProblem&, Stream);
};

/// Best first; the last row takes everything. Empty in a build without CUDA.
std::span<const QuantizeKernel> quantize_kernels();
std::span<const DequantizeKernel> dequantize_kernels();

// The rows, each in its own file.
extern const QuantizeKernel kQuantizeBlocks, kQuantizeRows, kQuantizeResident, kQuantizeTensor, kQuantizeGeneric;
extern const DequantizeKernel kDequantizeFlat, kDequantizeGeneric;

}  // namespace narrow::cuda
