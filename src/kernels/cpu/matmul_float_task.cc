/// The portable half of products with values of fp32 and bf16: which problems they take, their constants, and the packing of activations.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/packing.h"
#include "kernels/cpu/matmul_task_parts.h"

namespace narrow::cpu {
namespace {

using panels::kGroup;

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
