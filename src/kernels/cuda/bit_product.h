#pragma once
/// Products of matrices of +-1, packed as bits (1 stands for +1, 0 for -1): plain problems on device pointers, and the rows that solve
/// them.
///   sum_k a b = 4 popcount(A & B) - 2 popcount(A) - 2 popcount(B) + k,   over the k bits of a row of A and of B;
/// bits beyond k are zeros in both and so count for nothing.

#include <cstdint>
#include <span>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {

/// What the epilogue needs of a row of A or B.
struct BitTerm {
  std::int32_t offset;  ///< -2 popcount(row)
  float scale;
};

/// Terms lie in whole groups of so many rows, so that tiles can copy them without a look at the end.
constexpr int kBitTermRows = 256;
constexpr std::int64_t padded_bit_rows(std::int64_t rows) { return (rows + kBitTermRows - 1) / kBitTermRows * kBitTermRows; }

/// The Hopper rows add 4 popcount(A & B) - 2 popcount(A), at most 2 k in magnitude, inside a float's 22 bits.
constexpr int kMostBitK = 1 << 21;

struct BitProblem {
  int m = 0, n = 0, k = 0;
  const std::uint8_t* a = nullptr;
  const std::uint8_t* b = nullptr;
  std::int64_t a_pitch = 0, b_pitch = 0;  ///< bytes from row to row, multiples of 16, of 16-byte aligned memory; zeros beyond k
  const BitTerm* a_terms = nullptr;       ///< [padded_bit_rows], 16-byte aligned
  const BitTerm* b_terms = nullptr;
  ByteEpilogue epilogue;  ///< out: kI32 (the sums themselves), kF32, kF16, kBf16
  void* d = nullptr;
  std::int64_t d_pitch = 0;  ///< elements from row to row
};

/// A Hopper kernel: its tile, how many thread blocks of a cluster share B, and the model's microseconds (sm90/bit_plan.cc).
struct BitConfig {
  const char* name;
  int tile_m, tile_n, cluster;
  double first, first_block, next, next_block;
};
std::span<const BitConfig> bit_configs();
/// The configuration with the lowest estimate (sm90/bit_plan.cc).
int choose_bit_config(const BitProblem& problem, int multiprocessors);
double estimate_bit_config(const BitProblem& problem, int config, int multiprocessors);

/// Hopper alone (compute capability 9.0), k in [1, kMostBitK]. Results are CUDA's error codes.
int launch_bit_product(const BitProblem& problem, int config, Stream stream);
/// Exclusive or and popcount, any device and shape.
int launch_bit_product_any(const BitProblem& problem, Stream stream);

/// Rows of packed bits, `bytes` of them in a row of `cols` bits, `from_pitch` apart, to rows `to_pitch` apart (null: they stay where they
/// are), with zeros beyond cols; and the terms of the rows. scale_step 0: one scale for all rows.
struct BitRows {
  const std::uint8_t* from = nullptr;
  std::int64_t rows = 0, cols = 0, from_pitch = 0;
  std::uint8_t* to = nullptr;
  std::int64_t to_pitch = 0;
  const float* scales = nullptr;
  int scale_step = 0;
  BitTerm* terms = nullptr;
};
int launch_prepare_bits(const BitRows& rows, Stream stream);

/// The inverse: `bytes` bytes of every row without gaps, and the scales of the first scale_count terms.
struct BitCanonical {
  const std::uint8_t* from = nullptr;
  std::int64_t rows = 0, bytes = 0, from_pitch = 0;
  std::uint8_t* to = nullptr;
  const BitTerm* terms = nullptr;
  std::int64_t scale_count = 0;
  float* scales = nullptr;
};
int launch_unprepare_bits(const BitCanonical& rows, Stream stream);

/// Rows of fp32, fp16 or bf16 values, row_stride elements apart, as bits and terms: quantize of int1:row, bit for bit, laid for products.
struct BitSource {
  const void* x = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0, row_stride = 0;
  std::uint8_t* to = nullptr;
  std::int64_t to_pitch = 0;  ///< a multiple of 16
  BitTerm* terms = nullptr;
};
int launch_pack_bits(const BitSource& source, Stream stream);

}  // namespace narrow::cuda
