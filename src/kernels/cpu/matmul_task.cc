/// The portable half of the fast products: which problems they take, their constants, and the packing of activations.

#include "kernels/cpu/matmul_task.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/panels.h"
#include "kernels/storage.h"

namespace narrow::cpu {
namespace {

using panels::kGroup;
using panels::kLanes;

constexpr std::int64_t kTileRows = 16, kTileDepth = 64;  // of 8-bit activations in tiles
constexpr std::int64_t kPieceBytes = 2048;               // of a row on its way to its place

constexpr std::int64_t align64(std::int64_t size) { return panels::round_up(size, 64); }

PanelScales panel_scales(const WeightView& w, std::int64_t k) {
  PanelScales scales;
  scales.blocks = panels::k_blocks(w.grid, k);
  scales.factor = w.outer_scale;
  if (w.scheme.element.is_integer())
    scales.factor *= std::bit_cast<float>(static_cast<std::uint32_t>(127 - w.scheme.element.fraction_bits) << 23);
  if (!w.scheme.has_scales()) return scales;
  scales.bytes = w.scheme.scale.bits / 8;
  scales.kind = w.scheme.scale == kFp32   ? ScaleKind::kFp32
                : w.scheme.scale == kFp16 ? ScaleKind::kFp16
                : w.scheme.scale == kBf16 ? ScaleKind::kBf16
                : w.scheme.scale == kE8m0 ? ScaleKind::kE8m0
                                          : ScaleKind::kFp8E4m3;
  return scales;
}

std::int64_t panel_bytes(const MatmulProblem& problem) {
  return panels::padded_k(problem.k) / 8 * panels::stored_bits(problem.w.scheme.element) * kLanes;
}

bool is_integer_product(const MatmulProblem& problem) {
  return problem.x.quantized && is_exact_integer(problem.x.scheme.element) && is_exact_integer(problem.w.scheme.element);
}

float x_scale(const ActivationView& x, std::int64_t row, std::int64_t block) {
  const std::int64_t cell = x.grid.whole_tensor ? 0 : x.grid.grid_row(row) * x.grid.cols + block;
  return effective_scale(x.scheme, load_scale_code(x.scales, x.scheme.scale, cell), x.outer_scale);
}

/// The values of at most 16 codes as whole numbers of -127..127 in a power of two; false where they are none.
bool set_byte_table(const Format& element, FloatTask& task) {
  for (float unit = 1.0f; unit >= 0x1p-8f; unit *= 0.5f) {
    float largest = 0.0f;
    bool whole = true;
    for (std::uint32_t code = 0; code < element.code_count(); ++code) {
      const float steps = task.table[code] / unit;
      whole = whole && steps == std::nearbyint(steps);
      largest = std::max(largest, std::fabs(steps));
    }
    if (!whole) continue;
    if (largest > 127.0f) return false;
    task.byte_offset = static_cast<std::int32_t>(largest);
    task.byte_unit = unit;
    for (std::uint32_t i = 0; i < 64; ++i)
      task.bytes[i] = static_cast<std::uint8_t>(task.table[i & (element.code_count() - 1u)] / unit + largest);
    return true;
  }
  return false;
}

/// Whether the ways of one row may be taken, whose sums have fp32's rounding.
bool has_one_row(const MatmulProblem& problem) { return problem.m == 1 && !problem.in_fp64; }

/// Two bf16 leave 2^-18 of an activation, which K 2^-25 allows from K = 128 on.
bool has_pairs(const MatmulProblem& problem, const FloatTask& task) {
  const Format& element = problem.w.scheme.element;
  return has_one_row(problem) && problem.k >= 128 && !problem.x.quantized && task.halves_per_block > 1 && element.is_float() &&
         (element.bits == 5 || element.bits == 6);
}

FloatTask float_task(const MatmulProblem& problem) {
  const Format& element = problem.w.scheme.element;
  FloatTask task;
  task.groups = panels::padded_k(problem.k) / kGroup;
  task.panel_bytes = panel_bytes(problem);
  task.x_stride = panels::padded_k(problem.k) + 16;  // not a power of two: rows of a tile fall into different cache sets
  task.x_scales_offset = align64(sizeof(FloatTask));
  task.x_offset = task.x_scales_offset + align64(problem.m * 4);
  task.scales = panel_scales(problem.w, problem.k);
  task.halves_per_block = task.scales.blocks > 1 ? problem.w.grid.tile_cols / 16 : task.groups * 2;
  task.has_zero_points = problem.w.scheme.asymmetric;
  task.zero = element.is_signed ? 128.0f : 0.0f;
  if (element.is_float() && element.bits < 32) {
    task.right_shift = 8u - element.exponent_bits;
    task.mask = 0x80000000u | (((1u << (23 + element.exponent_bits)) - 1u) & ~((1u << (23 - element.mantissa_bits)) - 1u));
    task.factor = static_cast<float>(power_of_two(127 - element.bias));
  }
  if (element.bits <= 6)
    for (std::uint32_t i = 0; i < 64; ++i) {
      const float value = decode(element, panels::from_stored(element, i & (element.code_count() - 1u)));
      if (i < 32) task.table[i] = value;
      task.words[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    }
  const std::int64_t end = task.x_offset + align64(problem.m * task.x_stride * 4);
  if (has_pairs(problem, task)) task.pairs_offset = end;
  if (has_one_row(problem) && element.bits == 8 && element.is_integer() && element.is_signed && task.halves_per_block > 1) {
    task.digits_offset = end;
    task.byte_offset = 128;
    // Zen 4 reads 36 GB/s so and 22 otherwise, Zen 5 31 and 37; AVX-VNNI tells them apart.
    task.fetches_near = !cpu_supports(Isa::kAvxVnni);
  }
  if (has_one_row(problem) && element.bits <= 4 && !problem.w.scheme.asymmetric) {
    if (element.bits <= 2) task.tables_offset = end;  // a leaf takes one or the other
    const bool whole = set_byte_table(element, task), large_blocks = task.halves_per_block > 1;
    if (whole && (element.bits == 4 || (element.bits >= 2 && large_blocks))) task.digits_offset = end;
    // A run of 128 k has two roundings and at most eight rests, which K 2^-25 allows from there on.
    task.takes_byte_sums = whole && element.bits <= 2 && large_blocks && problem.k >= 128;
  }
  if (has_one_row(problem) && (element.bits == 3 || element.bits == 4) && problem.w.scheme.asymmetric && task.halves_per_block > 1) {
    task.digits_offset = end;
    task.byte_offset = 1;  // of zero points, which are subtracted as whole numbers
    for (std::uint32_t i = 0; i < 64; ++i) task.bytes[i] = static_cast<std::uint8_t>(i & (element.code_count() - 1u));
  }
  return task;
}

/// The tables of float_pack, of `bits`-bit codes with the values task.table: low two bits choose among four sums, high two among four.
void pack_tables(const FloatTask& task, int bits, const float* x, float* tables) {
  const float* v = task.table;
  const int codes = 4 / bits, per_word = 16 / bits;
  const auto four_sums = [&](const float* part, float* sums) {
    for (int c = 0; c < 4; ++c) sums[c] = bits == 2 ? v[c] * part[0] : v[c & 1] * part[0] + v[c >> 1] * part[1];
  };
  for (std::int64_t group = 0; group < task.groups; ++group)
    for (int vector = 0; vector < bits; ++vector)
      for (int nibble = 0; nibble < 8; ++nibble, tables += 16) {
        const float* part = x + group * kGroup + nibble / 4 * 16 + vector * per_word + nibble % 4 * codes;
        float low[4], high[4];
        four_sums(part, low);
        four_sums(part + codes / 2, high);
        for (int h = 0; h < 4; ++h)
          for (int l = 0; l < 4; ++l) tables[4 * h + l] = low[l] + high[h];
      }
}

/// fp16 to fp32 without branches, so that compilers vectorise it; Inf and NaN keep their exponent of all ones.
inline float half_value(std::uint32_t half) {
  const std::uint32_t placed = (half & 0x8000u) << 16 | (half & 0x7FFFu) << 13;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(placed) * 0x1p112f);
  return std::bit_cast<float>((half & 0x7C00u) == 0x7C00u ? placed | 0x7F800000u : bits);
}

void pack_values(const ActivationView& x, std::int64_t row, std::int64_t k, float* out) {
  if (x.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(x.data) + row * x.row_stride, static_cast<std::size_t>(k) * 4);
    return;
  }
  const std::uint16_t* in = static_cast<const std::uint16_t*>(x.data) + row * x.row_stride;
  if (x.dtype == DType::kBf16) {
    for (std::int64_t i = 0; i < k; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(in[i]) << 16);
  } else {
    for (std::int64_t i = 0; i < k; ++i) out[i] = half_value(in[i]);
  }
}

/// Codes to values: exact where the scale belongs to the row (it is applied at the end), times the scale where it varies along k.
void pack_codes(const ActivationView& x, std::int64_t row, std::int64_t k, float* out, float* row_scale) {
  const bool varies = varies_along_k(x.scheme, x.grid);
  const std::uint8_t* codes = x.codes + static_cast<std::size_t>(row) * x.row_bytes;
  const std::int64_t tile = varies ? x.grid.tile_cols : k;
  *row_scale = varies || !x.scheme.has_scales() ? 1.0f : x_scale(x, row, 0);
  for (std::int64_t begin = 0, block = 0; begin < k; begin += tile, ++block) {
    const float scale = varies ? x_scale(x, row, block) : 1.0f;
    const std::int64_t cell = x.grid.whole_tensor ? 0 : x.grid.grid_row(row) * x.grid.cols + block;
    const std::int32_t zero = x.scheme.asymmetric ? x.zero_points[cell] : 0;
    for (std::int64_t i = begin; i < std::min(k, begin + tile); ++i)
      out[i] = dequantize_element(x.scheme, read_code(codes, i, x.scheme.element.bits), scale, zero);
  }
}

/// Multiplies a row by a power of two so that its products with float codes placed in fp32's fields, 2^-(127 - bias) of their values,
/// neither overflow nor underflow, and writes the factor that makes up for both; false, with nothing done, where the row's range is too
/// wide.
bool normalize_row(float* x, std::int64_t count, float factor, float* row_scale) {
  std::uint32_t largest = 0, smallest = ~0u;  // magnitudes; of zeros none
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1u);
  }
  const std::uint32_t field = largest >> 23;
  if (field < 99 || field > 155 || smallest < (field - 72) << 23) return false;
  const std::uint32_t shift = 226 - field;  // the largest to 2^99 .. 2^100, the smallest not below 2^27
  const float scale = std::bit_cast<float>((127u + shift) << 23);
  for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] * scale;
  *row_scale = factor / scale;
  return true;
}

std::int64_t packed_stride(PackedRows rows, std::int64_t k) {
  switch (rows) {
    case PackedRows::kInPlace: return 0;
    case PackedRows::kBytes: return align64(panels::padded_k(k)) + 64;
    case PackedRows::kWords: return align64(panels::padded_k(k) * 2) + 64;
    case PackedRows::kTiles: return align64(k) * kTileRows;
  }
  return 0;
}

/// Whether bytes of `bits`-bit weights are in the order of k.
constexpr bool has_own_order(int bits) { return bits == 4 || bits == 8; }

/// Whether rows of bytes are the caller's codes as they lie: signed, whole groups, in the order of k.
bool fits_in_place(const MatmulProblem& problem) {
  return problem.x.scheme.element.is_signed && problem.x.scheme.element.bits == 8 && has_own_order(problem.w.scheme.element.bits) &&
         problem.k % kGroup == 0;
}

IntegerTask integer_task(const MatmulProblem& problem, PackedRows rows) {
  IntegerTask task;
  task.rows = rows == PackedRows::kBytes && fits_in_place(problem) ? PackedRows::kInPlace : rows;
  task.k = problem.k;
  task.groups = panels::padded_k(problem.k) / kGroup;
  task.panel_bytes = panel_bytes(problem);
  task.x_varies = varies_along_k(problem.x.scheme, problem.x.grid);
  task.w_varies = varies_along_k(problem.w.scheme, problem.w.grid);
  task.scales = panel_scales(problem.w, problem.k);
  const std::int64_t x_tile = task.x_varies ? problem.x.grid.tile_cols : problem.k,
                     w_tile = task.w_varies ? problem.w.grid.tile_cols : problem.k;
  const std::int64_t tile = std::min(x_tile, w_tile);
  task.segment_groups = task.x_varies || task.w_varies ? tile / kGroup : task.groups;
  task.segments = (task.groups + task.segment_groups - 1) / task.segment_groups;
  task.segments_per_x_block = task.x_varies ? x_tile / tile : task.segments;
  task.segments_per_w_block = task.w_varies ? w_tile / tile : task.segments;
  task.x_blocks = task.x_varies ? problem.x.grid.cols : 1;
  task.x_has_zeros = problem.x.scheme.asymmetric;
  task.w_has_zeros = problem.w.scheme.asymmetric;
  const Format& weight = problem.w.scheme.element;
  task.w_zero = weight.bits == 1 ? 1 : (weight.is_signed ? 1 << (weight.bits - 1) : 0);
  task.sums_offset = align64(sizeof(IntegerTask));
  task.x_scales_offset = task.sums_offset + align64(problem.m * task.segments * 4);
  task.x_zeros_offset = task.x_scales_offset + align64(problem.m * task.x_blocks * 4);
  task.x_offset = task.x_zeros_offset + align64(problem.m * task.x_blocks * 4);
  task.x_stride = packed_stride(task.rows, problem.k);
  return task;
}

/// The sum of signed bytes, whole groups of them, 16 at a time: u = s + 128 is unsigned, and 16-bit fields hold 128 sums of two.
std::int32_t sum_of_bytes(const std::int8_t* bytes, std::int64_t count) {
  using Fields [[gnu::vector_size(16)]] = std::uint16_t;
  constexpr std::int64_t kStep = sizeof(Fields), kMost = kStep * 128;
  std::int64_t total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kMost) {
    const std::int64_t end = std::min(count, begin + kMost);
    Fields sums{};
    for (std::int64_t i = begin; i < end; i += kStep) {
      Fields words;
      std::memcpy(&words, bytes + i, kStep);
      words ^= 0x8080;
      sums += (words & 0xFF) + (words >> 8);
    }
    for (int i = 0; i < kStep / 2; ++i) total += sums[i];
  }
  return static_cast<std::int32_t>(total - 128 * count);
}

/// Unsigned bytes to signed ones, a multiple of 8: code - 128.
void flip_signs(std::int8_t* bytes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    word ^= 0x8080808080808080u;
    std::memcpy(bytes + i, &word, 8);
  }
}

/// The k (0..31) of a group that byte `byte` of word `word` holds, in the order in which a decoder of `bits`-bit codes meets them.
constexpr int k_of_byte(int bits, int word, int byte) {
  const int half = byte / 2 * 16, odd = byte % 2, steps = 8 / bits, vector = word / steps, step = word % steps;
  return half + steps * (2 * vector + odd) + step;
}

/// Weights of 3 bits: of the 8 bytes k = 4v..4v+3 and 16+4v..16+4v+3 the even ones, then the odd ones.
void reorder_pairs(std::int8_t* row, std::int64_t groups) {
  const auto squeeze = [](std::uint64_t x) {
    x &= 0x00FF00FF00FF00FFu;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
    return (x | x >> 16) & 0xFFFFFFFFu;
  };
  for (std::int64_t group = 0; group < groups; ++group) {
    std::uint32_t in[8];
    std::uint64_t out[4];
    std::memcpy(in, row + group * kGroup, sizeof in);
    for (int v = 0; v < 4; ++v) {
      const std::uint64_t both = in[v] | std::uint64_t{in[v + 4]} << 32;
      out[v] = squeeze(both) | squeeze(both >> 8) << 32;
    }
    std::memcpy(row + group * kGroup, out, sizeof out);
  }
}

/// Moves the bytes of every 32 k into the order of k_of_byte.
void reorder(std::int8_t* row, std::int64_t groups, int bits) {
  if (has_own_order(bits)) return;
  if (bits == 3) return reorder_pairs(row, groups);
  std::uint8_t from[kGroup];
  for (int i = 0; i < kGroup; ++i) from[i] = static_cast<std::uint8_t>(k_of_byte(bits, i / 4, i % 4));
  for (std::int64_t group = 0; group < groups; ++group) {
    std::int8_t* bytes = row + group * kGroup;
    std::int8_t copy[kGroup];
    std::memcpy(copy, bytes, sizeof copy);
    for (int i = 0; i < kGroup; ++i) bytes[i] = copy[from[i]];
  }
}

}  // namespace

bool accepts_float(const MatmulProblem& problem) {
  if (problem.w.layout != WeightLayout::kPanels || problem.k == 0 || is_integer_product(problem) || problem.epilogue.out == DType::kI32)
    return false;
  return !problem.x.quantized || !varies_along_k(problem.x.scheme, problem.x.grid) || problem.k >= 16;
}

bool accepts_pairs(const MatmulProblem& problem, int stored_bits) {
  return accepts_float(problem) && panels::stored_bits(problem.w.scheme.element) == stored_bits && float_task(problem).pairs_offset != 0;
}

std::size_t float_packed_bytes(const MatmulProblem& problem) {
  const FloatTask task = float_task(problem);
  const std::int64_t tables = task.tables_offset == 0 ? 0 : task.groups * problem.w.scheme.element.bits * 8 * 16 * 4;
  constexpr auto kEntryBytes = static_cast<std::int64_t>(std::max(sizeof(DigitGroup), sizeof(WordDigitGroup)));
  const std::int64_t digits = task.digits_offset == 0 ? 0 : task.groups * kDigitEntries * kEntryBytes;
  const std::int64_t pairs = task.pairs_offset == 0 ? 0 : task.groups * kGroup * 4;
  return static_cast<std::size_t>(task.x_offset + align64(problem.m * task.x_stride * 4) + tables + digits + pairs);
}

void float_begin(const MatmulProblem& problem, std::byte* packed) {
  const FloatTask task = float_task(problem);
  std::memcpy(packed, &task, sizeof task);
}

void float_pack_rows(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  FloatTask& task = *reinterpret_cast<FloatTask*>(packed);
  const Format& element = problem.w.scheme.element;
  for (std::int64_t row = m_begin; row < m_end; ++row) {
    float* out = reinterpret_cast<float*>(packed + task.x_offset) + row * task.x_stride;
    float* row_scale = reinterpret_cast<float*>(packed + task.x_scales_offset) + row;
    *row_scale = 1.0f;
    if (problem.x.quantized) {
      pack_codes(problem.x, row, problem.k, out, row_scale);
    } else {
      pack_values(problem.x, row, problem.k, out);
    }
    std::fill(out + problem.k, out + task.groups * kGroup, 0.0f);
    if (has_one_row(problem) && !problem.x.quantized && panels::stored_bits(element) == 8 && element.is_float() &&
        element.exponent_bits <= 5)
      task.normalized = normalize_row(out, problem.k, task.factor, row_scale);
  }
}

void float_pack_tables(const MatmulProblem& problem, std::byte* packed) {
  const FloatTask& task = *reinterpret_cast<const FloatTask*>(packed);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  pack_tables(task, problem.w.scheme.element.bits, x, reinterpret_cast<float*>(packed + task.tables_offset));
}

void float_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  float_pack_rows(problem, m_begin, m_end, packed);
  if (reinterpret_cast<const FloatTask*>(packed)->tables_offset != 0) float_pack_tables(problem, packed);
}

bool accepts_integer(const MatmulProblem& problem, int weight_bits) {
  const Format &x = problem.x.scheme.element, &w = problem.w.scheme.element;
  if (problem.w.layout != WeightLayout::kPanels || problem.k == 0 || !is_integer_product(problem)) return false;
  if (!x.is_integer() || x.bits != 8 || w.bits != weight_bits) return false;  // int1 is a codebook, and an integer product all the same
  // The corrected sum must fit int32 (the terms may wrap): 127 * 127, 255 * 127 or 255 * 255 per k.
  const bool x_varies = varies_along_k(problem.x.scheme, problem.x.grid), w_varies = varies_along_k(problem.w.scheme, problem.w.grid);
  const std::int64_t x_tile = x_varies ? problem.x.grid.tile_cols : 0, w_tile = w_varies ? problem.w.grid.tile_cols : 0;
  if (x_tile % kGroup != 0 || w_tile % kGroup != 0) return false;
  if (x_varies && w_varies && std::max(x_tile, w_tile) % std::min(x_tile, w_tile) != 0) return false;
  if (x_varies && problem.x.scheme.asymmetric && (w_varies ? x_tile < w_tile : true)) return false;  // needs sums of codes per run
  const int unsigned_sides = (x.is_signed ? 0 : 1) + (w.is_signed ? 0 : 1);
  return problem.k <= (std::int64_t{131072} >> unsigned_sides);
}

bool accepts_integer_tiles(const MatmulProblem& problem, int weight_bits) {
  if (!accepts_integer(problem, weight_bits)) return false;
  const IntegerTask task = integer_task(problem, PackedRows::kTiles);
  return task.segments == 1 || task.segment_groups * kGroup % kTileDepth == 0;
}

template <PackedRows kRows>
std::size_t integer_packed_bytes(const MatmulProblem& problem) {
  const IntegerTask task = integer_task(problem, kRows);
  const std::int64_t per_stride = kRows == PackedRows::kTiles ? kTileRows : 1;
  return static_cast<std::size_t>(task.x_offset + (problem.m + per_stride - 1) / per_stride * task.x_stride);
}
template std::size_t integer_packed_bytes<PackedRows::kBytes>(const MatmulProblem&);
template std::size_t integer_packed_bytes<PackedRows::kWords>(const MatmulProblem&);
template std::size_t integer_packed_bytes<PackedRows::kTiles>(const MatmulProblem&);

template <PackedRows kRows>
void integer_begin(const MatmulProblem& problem, std::byte* packed) {
  IntegerTask task = integer_task(problem, kRows);
  task.x = reinterpret_cast<const std::int8_t*>(
      task.rows == PackedRows::kInPlace ? problem.x.codes : reinterpret_cast<std::uint8_t*>(packed) + task.x_offset);
  if (task.rows == PackedRows::kInPlace) task.x_stride = static_cast<std::int64_t>(problem.x.row_bytes);
  std::memcpy(packed, &task, sizeof task);
}
template void integer_begin<PackedRows::kBytes>(const MatmulProblem&, std::byte*);
template void integer_begin<PackedRows::kWords>(const MatmulProblem&, std::byte*);
template void integer_begin<PackedRows::kTiles>(const MatmulProblem&, std::byte*);

namespace {

/// Codes of k in [begin, end), whole groups, as signed bytes in the order of the weight's words; returns their sum.
std::int32_t pack_bytes(const MatmulProblem& problem, std::int64_t row, std::int64_t begin, std::int64_t end, std::int8_t* out) {
  const ActivationView& x = problem.x;
  const std::int64_t real = std::min(problem.k, end) - begin;
  std::memcpy(out, x.codes + static_cast<std::size_t>(row) * x.row_bytes + begin, static_cast<std::size_t>(real));
  std::fill(out + real, out + (end - begin), std::int8_t{0});
  if (!x.scheme.element.is_signed) {
    flip_signs(out, end - begin);
    std::fill(out + real, out + (end - begin), std::int8_t{0});
  }
  const std::int32_t sum = sum_of_bytes(out, end - begin);
  reorder(out, (end - begin) / kGroup, problem.w.scheme.element.bits);
  return sum;
}

/// Moves `count` bytes from k = `begin` on to where `task.rows` wants them; whole groups.
void place_bytes(const IntegerTask& task, const std::int8_t* bytes, std::int64_t row, std::int64_t begin, std::int64_t count,
                 std::int8_t* rows) {
  if (task.rows == PackedRows::kTiles) {
    std::int8_t* tile = rows + row / kTileRows * task.x_stride + begin * kTileRows + row % kTileRows * kTileDepth;
    for (std::int64_t i = 0; i < count; i += kTileDepth, tile += kTileRows * kTileDepth) {
      const std::int64_t real = std::min(kTileDepth, count - i);
      std::memcpy(tile, bytes + i, static_cast<std::size_t>(real));
      std::fill(tile + real, tile + kTileDepth, std::int8_t{0});
    }
    return;
  }
  auto* words = reinterpret_cast<std::int16_t*>(rows + row * task.x_stride) + begin;
  for (std::int64_t i = 0; i < count; i += 4) {
    words[i] = bytes[i];
    words[i + 1] = bytes[i + 2];
    words[i + 2] = bytes[i + 1];
    words[i + 3] = bytes[i + 3];
  }
}

}  // namespace

void integer_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  const IntegerTask& task = *reinterpret_cast<const IntegerTask*>(packed);
  const ActivationView& x = problem.x;
  const std::int32_t offset = x.scheme.element.is_signed ? 0 : 128;  // packed bytes are signed
  for (std::int64_t row = m_begin; row < m_end; ++row) {
    auto* rows = reinterpret_cast<std::int8_t*>(packed + task.x_offset);
    auto* sums = reinterpret_cast<std::int32_t*>(packed + task.sums_offset) + row * task.segments;
    for (std::int64_t segment = 0; segment < task.segments; ++segment) {
      const std::int64_t begin = segment * task.segment_groups * kGroup,
                         end = std::min(task.groups, (segment + 1) * task.segment_groups) * kGroup;
      if (task.rows == PackedRows::kInPlace) {
        sums[segment] = sum_of_bytes(task.x + row * task.x_stride + begin, end - begin);
        continue;
      }
      if (task.rows == PackedRows::kBytes) {
        sums[segment] = pack_bytes(problem, row, begin, end, rows + row * task.x_stride + begin);
        continue;
      }
      std::uint32_t sum = 0;
      for (std::int64_t piece = begin; piece < end; piece += kPieceBytes) {
        alignas(64) std::int8_t bytes[kPieceBytes];
        const std::int64_t last = std::min(end, piece + kPieceBytes);
        sum += static_cast<std::uint32_t>(pack_bytes(problem, row, piece, last, bytes));
        place_bytes(task, bytes, row, piece, last - piece, rows);
      }
      sums[segment] = static_cast<std::int32_t>(sum);
    }
    auto* scales = reinterpret_cast<float*>(packed + task.x_scales_offset) + row * task.x_blocks;
    auto* zeros = reinterpret_cast<std::int32_t*>(packed + task.x_zeros_offset) + row * task.x_blocks;
    for (std::int64_t block = 0; block < task.x_blocks; ++block) {
      const std::int64_t cell = x.grid.whole_tensor ? 0 : x.grid.grid_row(row) * x.grid.cols + block;
      scales[block] = x_scale(x, row, block);
      zeros[block] = x.scheme.asymmetric ? x.zero_points[cell] - offset : 0;
    }
  }
}

bool accepts_bf16(const MatmulProblem& problem) {
  return !problem.in_fp64 && !problem.x.quantized && problem.x.dtype == DType::kBf16 && problem.w.layout == WeightLayout::kPanels &&
         problem.w.scheme.element == kBf16 && !problem.w.scheme.has_scales();
}

std::size_t bf16_packed_bytes(const MatmulProblem& problem) {
  return static_cast<std::size_t>(kBf16Rows + problem.m * (panels::padded_k(problem.k) + kGroup) * 2);
}

void bf16_begin(const MatmulProblem& problem, std::byte* packed) {
  // The stride is no power of two: rows of a tile fall into different cache sets.
  const Bf16Task task{panels::padded_k(problem.k) / kGroup, panel_bytes(problem), panels::padded_k(problem.k) + kGroup};
  std::memcpy(packed, &task, sizeof task);
}

void bf16_pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  const std::int64_t stride = panels::padded_k(problem.k) + kGroup;
  for (std::int64_t m = m_begin; m < m_end; ++m) {
    auto* row = reinterpret_cast<std::uint16_t*>(packed + kBf16Rows) + m * stride;
    std::memcpy(row, static_cast<const std::uint16_t*>(problem.x.data) + m * problem.x.row_stride, static_cast<std::size_t>(problem.k) * 2);
    std::fill(row + problem.k, row + panels::padded_k(problem.k), std::uint16_t{0});
  }
}

}  // namespace narrow::cpu
