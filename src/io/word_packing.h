#pragma once
/// Unsigned codes in 32-bit words, as the files of other ecosystems hold them. Unpacked codes are one per byte, row-major.
///   dense:        code i of a line takes the bits [i * b, (i + 1) * b) of the line, lowest first; padding is zero
///   whole codes:  a word holds floor(32 / b) codes and its upper bits stay zero (compressed-tensors before 0.17)
/// The two differ for 3, 5, 6 and 7 bits alone.

#include <cstdint>
#include <span>
#include <vector>

namespace narrow::io {

enum class WordPacking : std::uint8_t { kDense, kWholeCodes };

/// Words that a line of `count` codes takes.
std::int64_t words_of(std::int64_t count, int bits, WordPacking packing = WordPacking::kDense);

/// A matrix of codes, one per byte.
struct CodeMatrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> codes{};

  std::uint8_t at(std::int64_t row, std::int64_t col) const { return codes[static_cast<std::size_t>(row * cols + col)]; }
  std::uint8_t& at(std::int64_t row, std::int64_t col) { return codes[static_cast<std::size_t>(row * cols + col)]; }
};
CodeMatrix make_codes(std::int64_t rows, std::int64_t cols);
CodeMatrix transposed(const CodeMatrix& matrix);

/// Lines along the columns: words [rows, words_of(cols)].
std::vector<std::uint32_t> pack_along_columns(const CodeMatrix& matrix, int bits, WordPacking packing = WordPacking::kDense);
CodeMatrix unpack_along_columns(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols, int bits,
                                WordPacking packing = WordPacking::kDense);

/// Lines along the rows: words [words_of(rows), cols].
std::vector<std::uint32_t> pack_along_rows(const CodeMatrix& matrix, int bits, WordPacking packing = WordPacking::kDense);
CodeMatrix unpack_along_rows(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols, int bits,
                             WordPacking packing = WordPacking::kDense);

/// Four bits, eight columns to a word, interleaved as AutoAWQ's GEMM kernel reads them: nibble i holds column 8c + kAwqOrder[i].
/// The columns are a multiple of 8.
inline constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
std::vector<std::uint32_t> pack_awq(const CodeMatrix& matrix);
CodeMatrix unpack_awq(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols);

}  // namespace narrow::io
