#include "format/packing.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace narrow {
namespace {

class Packing : public testing::TestWithParam<int> {};

/// Bit b of code i is bit (i * bits + b) of the stream, bit 0 of byte 0 first.
TEST_P(Packing, LiesWhereTheContractSays) {
  const int bits = GetParam();
  std::mt19937 generator(static_cast<unsigned>(bits));
  for (const std::int64_t count : {0, 1, 2, 7, 8, 9, 63, 64, 65, 257}) {
    std::vector<std::uint32_t> codes;
    for (std::int64_t i = 0; i < count; ++i) codes.push_back(static_cast<std::uint32_t>(generator()) & ((1u << bits) - 1u));
    std::vector<std::uint8_t> packed(packed_bytes(count, bits) + 1, 0);
    packed.back() = 0xA5;
    for (std::int64_t i = 0; i < count; ++i) write_code(packed.data(), i, bits, codes[static_cast<std::size_t>(i)]);
    for (std::int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(read_code(packed.data(), i, bits), codes[static_cast<std::size_t>(i)]);
      for (int b = 0; b < bits; ++b) {
        const std::int64_t at = i * bits + b;
        EXPECT_EQ((packed[static_cast<std::size_t>(at / 8)] >> (at % 8)) & 1u, (codes[static_cast<std::size_t>(i)] >> b) & 1u);
      }
    }
    EXPECT_EQ(packed.back(), 0xA5);  // nothing beyond
    if ((count * bits) % 8 != 0) {
      EXPECT_EQ(packed[packed.size() - 2] >> ((count * bits) % 8), 0);  // padding bits are zero
    }
  }
}

TEST_P(Packing, EightAtATimeAreTheSame) {
  const int bits = GetParam();
  if (bits > 8) return;
  std::mt19937_64 generator(static_cast<unsigned>(bits));
  for (int trial = 0; trial < 100; ++trial) {
    std::uint64_t bytes = 0;
    std::uint8_t packed[8] = {};
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t code = generator() & ((1u << bits) - 1u);
      bytes |= code << (8 * i);
      write_code(packed, i, bits, static_cast<std::uint32_t>(code));
    }
    std::uint64_t expected = 0;
    for (int i = 7; i >= 0; --i) expected = (expected << 8) | packed[i];
    EXPECT_EQ(pack_eight(bytes, bits), expected);
    EXPECT_EQ(unpack_eight(expected, bits), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryWidth, Packing, testing::Range(1, 17));

}  // namespace
}  // namespace narrow
