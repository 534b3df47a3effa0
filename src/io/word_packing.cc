#include "io/word_packing.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

/// Where a code begins in its line.
struct Place {
  std::int64_t word;
  int bit;
};

Place place_of(std::int64_t index, int bits, WordPacking packing) {
  if (packing == WordPacking::kWholeCodes) return {index / (32 / bits), static_cast<int>(index % (32 / bits)) * bits};
  return {index * bits / 32, static_cast<int>(index * bits % 32)};
}

/// A line of words that are `stride` apart.
void put(std::uint32_t* line, std::int64_t stride, std::int64_t index, int bits, WordPacking packing, std::uint32_t code) {
  const Place place = place_of(index, bits, packing);
  line[place.word * stride] |= code << place.bit;
  if (place.bit + bits > 32) line[(place.word + 1) * stride] |= code >> (32 - place.bit);
}

std::uint8_t get(const std::uint32_t* line, std::int64_t stride, std::int64_t index, int bits, WordPacking packing) {
  const Place place = place_of(index, bits, packing);
  std::uint32_t code = line[place.word * stride] >> place.bit;
  if (place.bit + bits > 32) code |= line[(place.word + 1) * stride] << (32 - place.bit);
  return static_cast<std::uint8_t>(code & ((1u << bits) - 1u));
}

void check_bits(int bits) {
  if (bits < 1 || bits > 8) throw InvalidArgument(fmt::format("words hold codes of 1 to 8 bits, not of {}", bits));
}

void check_words(std::size_t given, std::int64_t expected) {
  if (given != static_cast<std::size_t>(expected))
    throw InvalidArgument(fmt::format("{} words are given where the codes take {}", given, expected));
}

void check_codes(const CodeMatrix& matrix, int bits) {
  check_bits(bits);
  if (matrix.codes.size() != static_cast<std::size_t>(matrix.rows * matrix.cols))
    throw InvalidArgument(fmt::format("{} codes are given for a matrix of {} x {}", matrix.codes.size(), matrix.rows, matrix.cols));
  for (const std::uint8_t code : matrix.codes)
    if (code >> bits != 0) throw InvalidArgument(fmt::format("the code {} does not fit {} bits", code, bits));
}

void check_awq(std::int64_t cols) {
  if (cols % 8 != 0) throw InvalidArgument(fmt::format("AWQ packs eight columns to a word; {} are no multiple of it", cols));
}

}  // namespace

std::int64_t words_of(std::int64_t count, int bits, WordPacking packing) {
  check_bits(bits);
  const std::int64_t in_word = 32 / bits;
  return packing == WordPacking::kWholeCodes ? (count + in_word - 1) / in_word : count / 32 * bits + (count % 32 * bits + 31) / 32;
}

CodeMatrix make_codes(std::int64_t rows, std::int64_t cols) {
  if (rows == 0 || cols == 0) throw InvalidArgument(fmt::format("a matrix of {} x {} has no codes", rows, cols));
  return {rows, cols, std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols))};
}

CodeMatrix transposed(const CodeMatrix& matrix) {
  CodeMatrix result = make_codes(matrix.cols, matrix.rows);
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col) result.at(col, row) = matrix.at(row, col);
  return result;
}

std::vector<std::uint32_t> pack_along_columns(const CodeMatrix& matrix, int bits, WordPacking packing) {
  check_codes(matrix, bits);
  const std::int64_t line = words_of(matrix.cols, bits, packing);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(matrix.rows * line));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col) put(words.data() + row * line, 1, col, bits, packing, matrix.at(row, col));
  return words;
}

CodeMatrix unpack_along_columns(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols, int bits, WordPacking packing) {
  const std::int64_t line = words_of(cols, bits, packing);
  check_words(words.size(), rows * line);
  CodeMatrix matrix = make_codes(rows, cols);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) matrix.at(row, col) = get(words.data() + row * line, 1, col, bits, packing);
  return matrix;
}

std::vector<std::uint32_t> pack_along_rows(const CodeMatrix& matrix, int bits, WordPacking packing) {
  check_codes(matrix, bits);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(words_of(matrix.rows, bits, packing) * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col) put(words.data() + col, matrix.cols, row, bits, packing, matrix.at(row, col));
  return words;
}

CodeMatrix unpack_along_rows(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols, int bits, WordPacking packing) {
  check_words(words.size(), words_of(rows, bits, packing) * cols);
  CodeMatrix matrix = make_codes(rows, cols);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) matrix.at(row, col) = get(words.data() + col, cols, row, bits, packing);
  return matrix;
}

std::vector<std::uint32_t> pack_awq(const CodeMatrix& matrix) {
  check_codes(matrix, 4);
  check_awq(matrix.cols);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(matrix.rows * matrix.cols / 8));
  for (std::int64_t word = 0; word < matrix.rows * matrix.cols / 8; ++word)
    for (int i = 0; i < 8; ++i)
      words[static_cast<std::size_t>(word)] |= std::uint32_t{matrix.codes[static_cast<std::size_t>(8 * word + kAwqOrder[i])]} << (4 * i);
  return words;
}

CodeMatrix unpack_awq(std::span<const std::uint32_t> words, std::int64_t rows, std::int64_t cols) {
  check_awq(cols);
  check_words(words.size(), rows * cols / 8);
  CodeMatrix matrix = make_codes(rows, cols);
  for (std::int64_t word = 0; word < rows * cols / 8; ++word)
    for (int i = 0; i < 8; ++i)
      matrix.codes[static_cast<std::size_t>(8 * word + kAwqOrder[i])] =
          static_cast<std::uint8_t>(words[static_cast<std::size_t>(word)] >> (4 * i) & 15u);
  return matrix;
}

}  // namespace narrow::io
