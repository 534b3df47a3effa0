// Codes in words: the golden words of each ecosystem, and every width back again.
#include "io/word_packing.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

using Words = std::vector<std::uint32_t>;

CodeMatrix counting(std::int64_t rows, std::int64_t cols, int modulus) {
  CodeMatrix matrix = make_codes(rows, cols);
  for (std::size_t i = 0; i < matrix.codes.size(); ++i) matrix.codes[i] = static_cast<std::uint8_t>(i % static_cast<std::size_t>(modulus));
  return matrix;
}

TEST(WordPacking, GoldenWords) {
  // compressed-tensors: int4 codes -8..7 and int3 codes i % 8 - 4, stored with their offset.
  EXPECT_EQ(pack_along_columns(counting(1, 16, 16), 4), (Words{0x76543210u, 0xfedcba98u}));
  EXPECT_EQ(pack_along_columns(counting(1, 32, 8), 3), (Words{0x88fac688u, 0xc688fac6u, 0xfac688fau}));
  EXPECT_EQ(pack_along_columns(counting(1, 32, 8), 3, WordPacking::kWholeCodes),
            (Words{0x08fac688u, 0x1a23eb1au, 0x2c688facu, 0x0000003eu}));
  // GPTQ packs along k, the rows of the transposed weight.
  EXPECT_EQ(pack_along_rows(counting(8, 1, 8), 4), (Words{0x76543210u}));
  EXPECT_EQ(pack_along_rows(counting(32, 1, 8), 3), (Words{0x88fac688u, 0xc688fac6u, 0xfac688fau}));
  EXPECT_EQ(pack_awq(counting(1, 8, 8)), (Words{0x75316420u}));
}

TEST(WordPacking, EveryWidthReturns) {
  std::mt19937 generator(5);
  for (int bits = 1; bits <= 8; ++bits)
    for (const WordPacking packing : {WordPacking::kDense, WordPacking::kWholeCodes})
      for (const std::int64_t cols : {1, 7, 10, 11, 31, 32, 33, 64, 100}) {
        CodeMatrix matrix = make_codes(5, cols);
        for (std::uint8_t& code : matrix.codes) code = static_cast<std::uint8_t>(generator() & ((1u << bits) - 1u));
        const Words columns = pack_along_columns(matrix, bits, packing), rows = pack_along_rows(transposed(matrix), bits, packing);
        EXPECT_EQ(columns.size(), static_cast<std::size_t>(5 * words_of(cols, bits, packing)));
        EXPECT_EQ(unpack_along_columns(columns, 5, cols, bits, packing).codes, matrix.codes);
        EXPECT_EQ(transposed(unpack_along_rows(rows, cols, 5, bits, packing)).codes, matrix.codes);
      }
}

TEST(WordPacking, PackingsDifferByWordsInWholeRunsOfThirtyTwo) {
  for (const int bits : {3, 5, 6, 7})
    for (std::int64_t count = 32; count < 4096; count += 32)
      EXPECT_NE(words_of(count, bits), words_of(count, bits, WordPacking::kWholeCodes)) << bits << " " << count;
}

TEST(WordPacking, AwqReturns) {
  const CodeMatrix matrix = counting(3, 40, 13);
  EXPECT_EQ(unpack_awq(pack_awq(matrix), 3, 40).codes, matrix.codes);
}

TEST(WordPacking, RefusesWhatDoesNotFit) {
  EXPECT_THROW(pack_along_columns(counting(1, 16, 16), 3), InvalidArgument);
  EXPECT_THROW(pack_along_columns(counting(1, 16, 16), 9), InvalidArgument);
  EXPECT_THROW(pack_awq(counting(1, 12, 8)), InvalidArgument);
  EXPECT_THROW(unpack_along_columns(Words(3), 1, 16, 4), InvalidArgument);
  EXPECT_THROW(unpack_along_rows(Words(3), 16, 1, 4), InvalidArgument);
  EXPECT_THROW(unpack_awq(Words(3), 1, 16), InvalidArgument);
}

}  // namespace
}  // namespace narrow::io
