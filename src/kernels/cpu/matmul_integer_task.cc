/// The portable half of integer products: which problems they take, their constants, and the packing of 8-bit activations.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/matmul_task_parts.h"

namespace narrow::cpu {
namespace {

using panels::kGroup;

constexpr std::int64_t kTileRows = 16, kTileDepth = 64;  // of 8-bit activations in tiles
constexpr std::int64_t kPieceBytes = 2048;               // of a row on its way to its place

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

}  // namespace narrow::cpu
