#pragma once
/// What the vector bodies of matmul read: constants computed once per product by portable code (matmul_float_task.cc,
/// matmul_integer_task.cc), at the head of the packed activations. Instruction-set leaves see these plain structs and call nothing else.

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace narrow::cpu {

enum class ScaleKind : std::int32_t { kNone, kFp32, kFp16, kBf16, kE8m0, kFp8E4m3 };

/// Scales of the weight as a panel stores them.
struct PanelScales {
  ScaleKind kind = ScaleKind::kNone;
  float factor = 1.0f;      ///< outer scale, and 2^-fraction_bits of fixed-point integers
  std::int64_t blocks = 1;  ///< along k
  std::int64_t bytes = 0;   ///< of one code
};

/// Weight x fp32: one decoder's constants, and where things lie.
struct FloatTask {
  std::int64_t groups = 0;  ///< of 32 k
  std::int64_t panel_bytes = 0;
  std::int64_t x_stride = 0;          ///< floats from a packed row to the next
  std::int64_t x_offset = 0;          ///< of the packed rows, in bytes
  std::int64_t x_scales_offset = 0;   ///< one fp32 per row
  std::int64_t tables_offset = 0;     ///< where there are any: sums of activations, see float_pack
  bool takes_byte_sums = false;       ///< whether they may be whole numbers in bytes instead (x86/byte_sums.inl)
  bool has_byte_sums = false;         ///< whether pack could make them: finite values, most of a common range
  std::int64_t rests = 0;             ///< with has_byte_sums: how many
  std::int64_t digits_offset = 0;     ///< where there may be any: DigitGroups of the only row
  bool has_digits = false;            ///< whether pack could make them: finite values of a common range
  bool fetches_near = false;          ///< whether codes that are read faster than memory gives them are fetched shortly before
  std::int64_t halves_per_block = 0;  ///< 16 k each; all where the scale does not vary
  PanelScales scales;
  bool has_zero_points = false;
  bool normalized = false;        ///< the only row is large enough for float codes without `factor`; its scale makes up for both
  float zero = 0.0f;              ///< of symmetric 8-bit integers: 128
  std::uint32_t mask = 0;         ///< of placed float codes: sign, exponent and mantissa bits
  std::uint32_t right_shift = 0;  ///< from the top of a lane to fp32's fields
  float factor = 1.0f;            ///< 2^(127 - bias)
  float table[32] = {};           ///< of codes of at most 5 bits, repeated
  std::uint16_t words[64] = {};   ///< the same of codes of at most 6 bits, as bf16
  std::uint8_t bytes[64] = {};    ///< with digits_offset or takes_byte_sums: the same of codes of at most 4 bits, value = (byte -
                                  ///< byte_offset) * byte_unit; codes of int8 and asymmetric ones are such bytes themselves
  std::int32_t byte_offset = 0;
  float byte_unit = 1.0f;
  std::int64_t pairs_offset = 0;  ///< where there may be any (accepts_pairs): the only row as sums of two bf16, [group][k of 16][part][k,
                                  ///< k + 16]; what is left is at most 2^-18 of an activation
  bool has_pairs = false;         ///< whether pack could make them: finite values of a common range
};

/// 32 activations as whole numbers of 24 bits in a common unit: x = unit (d[0] 2^16 + d[1] 2^8 + d[2]) + what is left, digits of -128..127.
/// What is left of any of them is at most K 2^-25 of it, or another entry has it: `next`, its index, 0 where there is none.
struct DigitGroup {
  std::int8_t digit[8][3][4];  ///< [word of four k, in the order of a leaf's look-ups][digit][k]
  std::int32_t start[2][3];    ///< -byte_offset times the sum of a digit over the group; over its halves where scales have 16 k
  float unit[2];               ///< of d[1], of d[2], times byte_unit
  std::int32_t next;
};
/// The same in two digits of -2^14..2^14, for codes of 8 bits: x = unit (d[0] 2^15 + d[1]) + what is left.
struct WordDigitGroup {
  std::int16_t digit[8][2][4];  ///< [vector of four k][digit][k 0, 2, 1, 3]
  std::int32_t start[2];        ///< -128 times the sum of a digit over the group
  float unit[2];
  std::int32_t next;
};
inline constexpr std::int64_t kDigitEntries = 3;  ///< per group at most

/// What the whole numbers of FloatTask::has_byte_sums leave of one activation, and where its code lies: vector of the panel, bit of a lane.
struct Rest {
  std::int32_t vector, shift, block;  ///< block of k: of the scale
  float value;
};
inline constexpr std::int64_t kGroupRests = 2;  ///< per group at most, on average

/// How 8-bit activations are packed; against codes of fewer bits every 32 k in the order in which a panel's words hold them.
enum class PackedRows : std::int32_t {
  kInPlace,  ///< the caller's codes, where they are what kBytes would copy
  kBytes,    ///< one row after the other
  kWords,    ///< the same in 16 bits, of every four k 0, 2, 1, 3: what meets the even and the odd bytes of a word
  kTiles,    ///< 16 rows are 1 KiB for every 64 k: [k / 64][row][k % 64]
};

/// Integer x integer. Segments are runs of k without a change of scale.
struct IntegerTask {
  std::int64_t groups = 0;
  std::int64_t panel_bytes = 0;
  std::int64_t x_stride = 0;  ///< bytes from a packed row to the next; in tiles, of 16 rows to the next 16
  PackedRows rows = PackedRows::kBytes;
  const std::int8_t* x = nullptr;    ///< the rows, packed or the caller's
  std::int64_t x_offset = 0;         ///< of rows that are packed
  std::int64_t sums_offset = 0;      ///< int32 [m, segments]: sum of the packed row's bytes
  std::int64_t x_scales_offset = 0;  ///< fp32 [m, x blocks]
  std::int64_t x_zeros_offset = 0;   ///< int32 [m, x blocks]: zero point of the packed (signed) bytes
  std::int64_t x_blocks = 1;
  std::int64_t segments = 1;
  std::int64_t segment_groups = 0;  ///< the last may be shorter
  std::int64_t segments_per_x_block = 1, segments_per_w_block = 1;
  bool x_varies = false, w_varies = false;
  bool x_has_zeros = false, w_has_zeros = false;
  std::int32_t w_zero = 0;  ///< of symmetric weights: 2^(bits-1); 1 of int1, whose bytes are 0 and 2
  std::int64_t k = 0;
  PanelScales scales;
};

bool accepts_float(const MatmulProblem& problem);                   ///< panels, not an integer product; any element
bool accepts_pairs(const MatmulProblem& problem, int stored_bits);  ///< one row of values and floats of 5 or 6 bits, no scale of 16 k
std::size_t float_packed_bytes(const MatmulProblem& problem);
void float_begin(const MatmulProblem& problem, std::byte* packed);
void float_pack_rows(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);  ///< rows of fp32
/// One row against codes of 1 or 2 bits without zero points: tables[group][vector][nibble][16], what the 4 or 2 codes of that nibble of a
/// lane (kernels/panels.h) and their activations add up to.
void float_pack_tables(const MatmulProblem& problem, std::byte* packed);
/// Rows, and tables where they are wanted.
void float_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);

/// bf16 x bf16: rows of bf16 behind this head, padded with zeros to whole groups.
struct Bf16Task {
  std::int64_t groups = 0;  ///< of 32 k
  std::int64_t panel_bytes = 0;
  std::int64_t x_stride = 0;  ///< elements from a packed row to the next
};
inline constexpr std::int64_t kBf16Rows = 64;  ///< bytes before the first packed row

bool accepts_bf16(const MatmulProblem& problem);  ///< bf16 activations, panels of bf16 without scales
std::size_t bf16_packed_bytes(const MatmulProblem& problem);
void bf16_begin(const MatmulProblem& problem, std::byte* packed);
void bf16_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);

bool accepts_integer(const MatmulProblem& problem, int weight_bits);
bool accepts_integer_tiles(const MatmulProblem& problem, int weight_bits);  ///< whose segments are whole tiles
template <PackedRows kRows>
std::size_t integer_packed_bytes(const MatmulProblem& problem);
template <PackedRows kRows>
void integer_begin(const MatmulProblem& problem, std::byte* packed);
void integer_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);

}  // namespace narrow::cpu
