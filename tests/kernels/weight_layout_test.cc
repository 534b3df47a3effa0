/// The layout of prepared weights: every bit of every code has a place of its own. Needs no device.

#include "kernels/cuda/weight_layout.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace narrow::cuda {
namespace {

TEST(WeightLayoutTest, EveryBitOfALaneHasItsOwnPlace) {
  for (const WeightKind kind : {WeightKind::kInteger, WeightKind::kFloat})
    for (int bits = kind == WeightKind::kFloat ? 2 : 1; bits <= kMostBits; ++bits)
      for (int mantissa = 0; mantissa < bits; ++mantissa) {
        if (mantissa != stored_mantissa(bits) && !has_own_decoder(bits, mantissa)) continue;
        const Placement placement = make_placement(kind, bits, mantissa);
        std::set<std::pair<int, int>> places;
        for (int pair = 0; pair < kPairs; ++pair)
          for (int i = 0; i < bits; ++i) {
            const int word = placement.word[pair][i], bit = placement.bit[pair][i];
            EXPECT_LT(word, bits);
            EXPECT_LT(bit, 16);
            places.emplace(word, bit);
          }
        EXPECT_EQ(places.size(), static_cast<std::size_t>(kPairs * bits)) << bits << " bits, mantissa " << mantissa;
      }
}

TEST(WeightLayoutTest, EveryWordOfAChunkHasItsOwnPlace) {
  for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    WeightLayoutInfo layout;
    layout.bits = bits;
    std::set<int> offsets;
    for (int warp = 0; warp < 4; ++warp)
      for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 2 * bits; ++word) {
          const int offset = word_offset(bits, warp, lane, word);
          EXPECT_EQ(offset % 4, 0);
          EXPECT_LT(offset, layout.code_bytes());
          offsets.insert(offset);
        }
    EXPECT_EQ(static_cast<int>(offsets.size()) * 4, layout.code_bytes()) << bits << " bits";
  }
}

TEST(WeightLayoutTest, PartsOfAChunkAreMultiplesOfSixteenBytes) {
  for (const ChunkScale scale : {ChunkScale::kNone, ChunkScale::kFloat, ChunkScale::kBf16})
    for (const int step : {16, 32, 64, 128})
      for (int bits = 1; bits <= kMostBits; ++bits) {
        WeightLayoutInfo layout;
        layout.bits = bits;
        layout.scale = scale;
        layout.step = step;
        layout.has_zeros = true;
        EXPECT_EQ(layout.code_bytes() % 16, 0);
        EXPECT_EQ(layout.scale_bytes() % 16, 0);
        EXPECT_EQ(layout.zero_bytes() % 16, 0);
        EXPECT_EQ(layout.scale_index(63, 127) + 1, kChunkRows * kChunkDepth / step);
      }
}

/// The decoders leave most bits where they are or move them together: no format needs more than two moves per pair on average.
TEST(WeightLayoutTest, PlacementsNeedFewMoves) {
  for (int bits = 2; bits <= kMostBits; ++bits)
    for (int mantissa = 0; mantissa < bits; ++mantissa) {
      if (mantissa != stored_mantissa(bits) && !has_own_decoder(bits, mantissa)) continue;
      const Placement placement = make_placement(WeightKind::kFloat, bits, mantissa);
      int moves = 0;
      for (int pair = 0; pair < kPairs; ++pair) {
        std::set<std::pair<int, int>> pieces;
        for (int i = 0; i < bits; ++i)
          pieces.emplace(placement.word[pair][i], target_bit(WeightKind::kFloat, bits, mantissa, i) - placement.bit[pair][i]);
        moves += static_cast<int>(pieces.size());
      }
      EXPECT_LE(moves, 2 * kPairs) << bits << " bits, mantissa " << mantissa;
    }
}

}  // namespace
}  // namespace narrow::cuda
