#pragma once
/// How prepared weights lie in memory, for the products that read them straight into tensor-core fragments.
///
/// A weight [n, k] is cut into chunks of 64 rows x 128 columns, rows of chunks one after the other; n and k are padded with codes of zero.
/// A chunk holds, in this order, all multiples of 16 bytes:
///   codes   four warps of 16 rows each; of a warp, 2 * bits words per lane, in units of four words [unit][lane][4], and, where two words
///           are left over, [lane][2]. Words 0 .. bits-1 hold the lane's 32 codes of columns 0 .. 63, the others those of 64 .. 127.
///   scales  of schemes whose scales change along k: [64 rows][128 / step], as fp32, or as bf16, which holds e8m0 and fp8_e4m3 exactly
///   zeros   of asymmetric schemes: [64 rows][128 / step] bytes
///
/// The 32 codes of a lane are 16 pairs, in the order of the registers of four m16k16 fragments (PTX's layout): pair 4s + r has
///   row lane / 4 + 8 (r % 2),  columns 16 s + 8 (r / 2) + 2 (lane % 4) + {0, 1}.
/// The first code of a pair takes bits of the lower halves of words, the second the same bits of the upper halves. Which bits is chosen so
/// that decoding moves as few pieces as possible: bits that lie where the 16-bit value wants them need no move at all.

#include <cstddef>
#include <cstdint>

#include "narrow/format.h"

namespace narrow::cuda {

constexpr int kChunkRows = 64, kChunkDepth = 128, kPairs = 16, kMostBits = 8;

/// How codes are stored and turned into 16-bit values.
enum class WeightKind : std::uint8_t {
  kInteger,  ///< offset binary, value = code - offset
  kFloat,    ///< sign and magnitude, laid into fp16's fields: value = fp16 * 2^(15 - bias)
  kDense,    ///< 16-bit values as they are
};

/// The mantissa bits for whose place in an fp16 a float of so many bits is stored: of e2m0, e2m1, e2m2, e3m2, e3m3, e4m3; unless it has a
/// decoder of its own.
NARROW_HOST_DEVICE constexpr int stored_mantissa(int bits) {
  constexpr int kMantissa[9] = {0, 0, 0, 0, 1, 2, 2, 3, 3};
  return bits <= kMostBits ? kMantissa[bits] : 0;
}
/// Whether floats of so many bits and such a mantissa have: e1m2 (msfp12), e3m1, e2m3.
NARROW_HOST_DEVICE constexpr bool has_own_decoder(int bits, int mantissa) {
  return (bits == 4 && mantissa == 2) || (bits == 5 && mantissa == 1) || (bits == 6 && mantissa == 3);
}

/// The bit of a 16-bit value that bit i of a code becomes.
NARROW_HOST_DEVICE constexpr int target_bit(WeightKind kind, int bits, int mantissa, int i) {
  if (kind == WeightKind::kInteger) return i;
  return i == bits - 1 ? 15 : 10 - mantissa + i;
}

/// For every pair of a lane and every bit of a code: its word, and its bit in the lower half of that word.
struct Placement {
  std::uint8_t word[kPairs][kMostBits] = {};
  std::uint8_t bit[kPairs][kMostBits] = {};
};

/// Integers whose bits divide 16 lie in even fields: pair p in field p % (16 / bits) of word p / (16 / bits).
NARROW_HOST_DEVICE constexpr bool has_even_fields(WeightKind kind, int bits) {
  return kind == WeightKind::kInteger && (bits == 1 || bits == 2 || bits == 4 || bits == 8);
}

/// Bits of a pair's codes that lie in a word, `shift` below their places.
struct PlacedPiece {
  int pair, word, shift, bits;
};
template <std::size_t kCount>
NARROW_HOST_DEVICE constexpr Placement place_pieces(const PlacedPiece (&pieces)[kCount], int bits, int mantissa) {
  Placement placement;
  for (const PlacedPiece& piece : pieces)
    for (int i = 0; i < bits; ++i)
      if ((piece.bits >> i & 1) != 0) {
        placement.word[piece.pair][i] = static_cast<std::uint8_t>(piece.word);
        placement.bit[piece.pair][i] = static_cast<std::uint8_t>(target_bit(WeightKind::kFloat, bits, mantissa, i) - piece.shift);
      }
  return placement;
}

/// e2m2, whose places are bits 15 and 11 .. 8: two pairs of a word lie in one piece, at shifts of 0 and 8, and leave bits 14 .. 12 and
/// 6 .. 4. Of these the other six pairs have two or three pieces, and three pieces alone are moved to the right.
NARROW_HOST_DEVICE constexpr Placement place_e2m2() {
  constexpr PlacedPiece kPieces[] = {
      {0, 0, 0, 31},   {1, 1, 0, 31},  {2, 2, 0, 31},   {3, 3, 0, 31},   {8, 4, 0, 31},                  // at their places
      {4, 0, 8, 31},   {5, 1, 8, 31},  {6, 2, 8, 31},   {7, 3, 8, 31},   {9, 4, 8, 31},                  // 8 bits below them
      {10, 0, 5, 14},  {10, 2, 2, 17}, {11, 1, 5, 14},  {11, 2, 3, 17},                                  // 6, 5, 4 and 13, 6 or 12, 5
      {12, 0, -3, 14}, {12, 3, 2, 17}, {13, 1, -3, 14}, {13, 3, 3, 17},                                  // 14, 13, 12 and the same
      {14, 4, 5, 14},  {14, 2, 1, 16}, {14, 2, 4, 1},   {15, 4, -3, 14}, {15, 3, 1, 16}, {15, 3, 4, 1},  // and 14 and 4
  };
  return place_pieces(kPieces, 5, 2);
}

/// e2m0, whose places are bits 15, 11 and 10: four pairs of a word lie in one piece and leave bits 14, 12, 6 and 4. Three of these are a
/// pair that one multiplication brings to its places; of the fourth of each word the last pair is made.
NARROW_HOST_DEVICE constexpr Placement place_e2m0() {
  constexpr PlacedPiece kPieces[] = {
      {0, 0, 0, 7},  {1, 1, 0, 7},  {2, 2, 0, 7},  {3, 0, 2, 7},  {4, 1, 2, 7},   {5, 2, 2, 7},    // bits 15, 11, 10 and 13, 9, 8
      {6, 0, 8, 7},  {7, 1, 8, 7},  {8, 2, 8, 7},  {9, 0, 10, 7}, {10, 1, 10, 7}, {11, 2, 10, 7},  // 7, 3, 2 and 5, 1, 0
      {12, 0, 1, 4}, {12, 0, 4, 1}, {12, 0, 7, 2}, {13, 1, 1, 4}, {13, 1, 4, 1},  {13, 1, 7, 2},   // 14, 6, 4
      {14, 2, 1, 4}, {14, 2, 4, 1}, {14, 2, 7, 2}, {15, 0, 3, 4}, {15, 1, -2, 1}, {15, 2, -1, 2},  // and 12
  };
  return place_pieces(kPieces, 3, 0);
}

/// Pair after pair takes the piece (a word and a shift) that places most of its bits, until all are placed; the fewer moves the better.
/// Of e2m2 that would leave one bit of each word to the last pair, of e2m0 pieces of several words to three of them.
NARROW_HOST_DEVICE constexpr Placement make_placement(WeightKind kind, int bits, int mantissa) {
  Placement placement;
  if (has_even_fields(kind, bits)) {
    for (int i = 0; i < kPairs * bits; ++i) {
      placement.word[i / bits][i % bits] = static_cast<std::uint8_t>(i / 16);
      placement.bit[i / bits][i % bits] = static_cast<std::uint8_t>(i % 16);
    }
    return placement;
  }
  if (kind == WeightKind::kFloat && bits == 5 && mantissa == 2) return place_e2m2();
  if (kind == WeightKind::kFloat && bits == 3 && mantissa == 0) return place_e2m0();
  std::uint32_t taken[kMostBits] = {};
  for (int pair = 0; pair < kPairs; ++pair) {
    std::uint32_t left = (1u << bits) - 1u;
    while (left != 0) {
      int best_word = 0, best_shift = 0, best = -1;
      std::uint32_t best_bits = 0;
      for (int word = 0; word < bits; ++word)
        for (int shift = -15; shift <= 15; ++shift) {
          std::uint32_t covered = 0;
          int count = 0;
          for (int i = 0; i < bits; ++i) {
            const int from = target_bit(kind, bits, mantissa, i) - shift;
            if ((left >> i & 1u) != 0 && from >= 0 && from < 16 && (taken[word] >> from & 1u) == 0) covered |= 1u << i, ++count;
          }
          const int score = count * 4 + (shift == 0 ? 2 : (shift > 0 ? 1 : 0));
          if (count > 0 && score > best) best = score, best_word = word, best_shift = shift, best_bits = covered;
        }
      for (int i = 0; i < bits; ++i)
        if ((best_bits >> i & 1u) != 0) {
          const int from = target_bit(kind, bits, mantissa, i) - best_shift;
          placement.word[pair][i] = static_cast<std::uint8_t>(best_word);
          placement.bit[pair][i] = static_cast<std::uint8_t>(from);
          taken[best_word] |= 1u << from;
        }
      left &= ~best_bits;
    }
  }
  return placement;
}

/// The same, made once for all that ask for it while compiling.
template <WeightKind kKind, int kBits, int kMantissa = stored_mantissa(kBits)>
inline constexpr Placement kPlacement = make_placement(kKind, kBits, kMantissa);

/// The scales inside chunks.
enum class ChunkScale : std::uint8_t { kNone, kFloat, kBf16 };

/// The sizes of a prepared weight.
struct WeightLayoutInfo {
  WeightKind kind = WeightKind::kFloat;
  int bits = 0;      ///< of a stored code: those of the format, or more
  int mantissa = 0;  ///< of floats: the mantissa for whose place they are stored
  ChunkScale scale = ChunkScale::kNone;
  int step = kChunkDepth;  ///< columns that share a stored scale: 16, 32, 64 or 128
  bool has_zeros = false;
  int row_chunks = 0, depth_chunks = 0;  ///< chunks along n and k

  NARROW_HOST_DEVICE constexpr int code_bytes() const { return kChunkRows * kChunkDepth / 8 * bits; }
  NARROW_HOST_DEVICE constexpr int scale_size() const { return scale == ChunkScale::kNone ? 0 : (scale == ChunkScale::kFloat ? 4 : 2); }
  /// The number of the scale and zero point of (row, column) among those of its chunk.
  NARROW_HOST_DEVICE constexpr int scale_index(int row, int column) const {
    return row % kChunkRows * (kChunkDepth / step) + column % kChunkDepth / step;
  }
  NARROW_HOST_DEVICE constexpr int scale_bytes() const { return kChunkRows * (kChunkDepth / step) * scale_size(); }
  NARROW_HOST_DEVICE constexpr int zero_bytes() const { return has_zeros ? kChunkRows * (kChunkDepth / step) : 0; }
  NARROW_HOST_DEVICE constexpr int chunk_bytes() const { return code_bytes() + scale_bytes() + zero_bytes(); }
  NARROW_HOST_DEVICE constexpr std::int64_t total_bytes() const { return std::int64_t{row_chunks} * depth_chunks * chunk_bytes(); }
};

/// Bytes from the start of a chunk to word `word` of a lane of a warp.
NARROW_HOST_DEVICE constexpr int word_offset(int bits, int warp, int lane, int word) {
  const int words = 2 * bits, whole = words / 4 * 4, base = warp * 32 * words * 4;
  if (word < whole) return base + (word / 4 * 32 + lane) * 16 + word % 4 * 4;
  return base + whole * 32 * 4 + lane * 8 + (word - whole) * 4;
}

}  // namespace narrow::cuda
