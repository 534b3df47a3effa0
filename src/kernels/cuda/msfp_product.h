#pragma once
/// Products of MSFP matrices, D[m, n] = epilogue(sum_k A[m, k] * B[n, k]): plain problems on device pointers, and what solves them.
///
/// Prepared: a code of 4 bits (msfp11, msfp12) or 8 (msfp13 .. msfp16) is a sign and a magnitude whose top bit is the element's top bit, so
///   value = +-magnitude * 2^(e - 2) of 4 bits, +-magnitude * 2^(e - 6) of 8;
/// rows are padded with zero codes to a multiple of 128 columns; the exponent bytes e + 127 of four boxes of 16, 64 columns of a row, are
/// one word, and the words of all rows lie together: [columns / 64][rows padded to 128]. A box whose exponent byte is 0 is zero.

#include <cstdint>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {

constexpr int kMsfpBox = 16, kMsfpDepth = 128, kMsfpRows = 128;
/// Operands are decoded in panels of rows and chunks of columns, a warp kMsfpRowsAtOnce rows of a chunk at a time.
constexpr int kMsfpPanel = 256, kMsfpChunk = 256, kMsfpRowsAtOnce = 16;

constexpr std::int64_t padded_msfp_depth(std::int64_t k) { return (k + kMsfpDepth - 1) / kMsfpDepth * kMsfpDepth; }
constexpr std::int64_t padded_msfp_rows(std::int64_t rows) { return (rows + kMsfpRows - 1) / kMsfpRows * kMsfpRows; }

/// A prepared matrix; `depth` is its padded number of columns.
struct MsfpView {
  std::int64_t rows = 0, depth = 0;
  int bits = 8;                         ///< of a stored code: 4 or 8
  const std::uint8_t* codes = nullptr;  ///< [rows][depth * bits / 8], 16-byte aligned
  const std::uint32_t* exponents = nullptr;

  constexpr std::int64_t pitch() const { return depth * bits / 8; }
  constexpr std::int64_t exponent_rows() const { return padded_msfp_rows(rows); }
};

struct MsfpProblem {
  int m = 0, n = 0;
  MsfpView a, b;
  ByteEpilogue epilogue;  ///< out: kF32, kF16, kBf16
  void* d = nullptr;
  std::int64_t d_pitch = 0;  ///< elements from row to row
};

/// Canonical codes (rows of `cols` codes of `bits` bits, each row from a byte on) and exponents, one byte per box, row by row.
struct MsfpCanonical {
  std::int64_t rows = 0, cols = 0;
  int bits = 8;
  std::uint8_t* codes = nullptr;
  std::uint8_t* exponents = nullptr;
};
int launch_prepare_msfp(const MsfpCanonical& from, const MsfpView& to, Stream stream);
int launch_unprepare_msfp(const MsfpView& from, const MsfpCanonical& to, Stream stream);

constexpr std::int64_t msfp_panels(std::int64_t rows) { return (rows + kMsfpPanel - 1) / kMsfpPanel; }
constexpr std::int64_t msfp_chunks(std::int64_t depth) { return (depth + kMsfpChunk - 1) / kMsfpChunk; }
/// Scratch memory of launch_msfp_product: B and A in bf16, B's rows in groups of 32; a counter for every chunk of a panel, and one more.
constexpr std::int64_t padded_msfp_b_rows(std::int64_t rows) { return (rows + 31) / 32 * 32; }
constexpr std::size_t msfp_scratch_bytes(const MsfpView& a, const MsfpView& b) {
  return static_cast<std::size_t>((a.rows + padded_msfp_b_rows(b.rows)) * a.depth * 2 +
                                  ((msfp_panels(a.rows) + msfp_panels(b.rows)) * msfp_chunks(a.depth) + 1) * 4);
}
/// Hopper alone; the scratch memory is 128-byte aligned. Results are CUDA's error codes.
int launch_msfp_product(const MsfpProblem& problem, void* scratch, Stream stream);
/// Any device: the exact sums of boxes, added up in fp32 in order.
int launch_msfp_product_any(const MsfpProblem& problem, Stream stream);

}  // namespace narrow::cuda
