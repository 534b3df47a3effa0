#include "kernels/cpu/matmul_special.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/cpu/binary_rows.h"
#include "kernels/cpu/msfp_rows.h"
#include "kernels/panels.h"
#include "kernels/storage.h"

namespace narrow::cpu {
namespace {

#include "kernels/cpu/matmul_epilogue.inl"

constexpr std::int64_t align64(std::int64_t size) { return panels::round_up(size, 64); }

float x_scale(const ActivationView& x, std::int64_t row) {
  if (!x.scheme.has_scales()) return 1.0f;
  const std::int64_t cell = x.grid.whole_tensor ? 0 : x.grid.grid_row(row) * x.grid.cols;
  return effective_scale(x.scheme, load_scale_code(x.scales, x.scheme.scale, cell), x.outer_scale);
}

bool is_plain(const MatmulEpilogue& epilogue) {
  return epilogue.bias == nullptr && epilogue.residual == nullptr && epilogue.activation == Activation::kNone &&
         epilogue.out == DType::kF32;
}

// ---- int1 x int1 ----

constexpr std::int64_t kBinaryRows = 96, kBinaryOutputs = 512;  // a tile; its panels stay in the second-level cache

bool accepts_binary(const MatmulProblem& p) {
  return p.w.layout == WeightLayout::kPanels && p.x.quantized && p.x.scheme.element == kInt1 && p.w.scheme.element == kInt1 &&
         !varies_along_k(p.x.scheme, p.x.grid) && !varies_along_k(p.w.scheme, p.w.grid) && p.k < (std::int64_t{1} << 30);
}

/// Packed: fp32 scales of the outputs, of the rows, then the rows' bits in words.
struct BinaryLayout {
  std::int64_t words, row_scales, bits, size;
};

BinaryLayout binary_layout(const MatmulProblem& p) {
  BinaryLayout layout{};
  layout.words = panels::padded_k(p.k) / 32;
  layout.row_scales = align64(panels::padded_n(p.n) * 4);
  layout.bits = layout.row_scales + align64(p.m * 4);
  layout.size = layout.bits + align64(p.m * layout.words * 4);
  return layout;
}

std::size_t binary_packed_bytes(const MatmulProblem& p) { return static_cast<std::size_t>(binary_layout(p).size); }

void binary_begin(const MatmulProblem& p, std::byte* packed) {
  for (std::int64_t n = 0; n < panels::padded_n(p.n); ++n)
    reinterpret_cast<float*>(packed)[n] =
        p.w.scheme.has_scales()
            ? effective_scale(p.w.scheme, load_scale_code(p.w.scales, p.w.scheme.scale, panels::scale_index(n, 0, 1)), p.w.outer_scale)
            : 1.0f;
}

void binary_pack(const MatmulProblem& p, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  const BinaryLayout layout = binary_layout(p);
  for (std::int64_t m = m_begin; m < m_end; ++m) {
    reinterpret_cast<float*>(packed + layout.row_scales)[m] = x_scale(p.x, m);
    auto* words = reinterpret_cast<std::uint32_t*>(packed + layout.bits) + m * layout.words;
    if (layout.words == 0) continue;
    words[layout.words - 1] = 0;
    std::memcpy(words, p.x.codes + static_cast<std::size_t>(m) * p.x.row_bytes, packed_bytes(p.k, 1));
    if (p.k % 32 != 0) words[layout.words - 1] &= (1u << (p.k % 32)) - 1u;
  }
}

std::size_t binary_scratch_bytes(const MatmulProblem&) { return kBinaryRows * kBinaryOutputs * 4; }

template <std::size_t kIndex>
void binary_tile(const MatmulProblem& p, const MatmulTile& tile, const std::byte* packed, std::byte* scratch) {
  const BinaryLayout layout = binary_layout(p);
  const MatmulEpilogue& e = p.epilogue;
  const std::int64_t rows = tile.m_end - tile.m_begin, outputs = tile.n_end - tile.n_begin;
  const bool sums_wanted = e.out == DType::kI32, direct = sums_wanted || is_plain(e);
  BinaryProblem problem{.m = rows,
                        .n = outputs,
                        .k = p.k,
                        .words = layout.words,
                        .a = reinterpret_cast<const std::uint32_t*>(packed + layout.bits) + tile.m_begin * layout.words,
                        .a_stride = layout.words,
                        .w = reinterpret_cast<const std::uint32_t*>(p.w.codes) + tile.n_begin * layout.words};
  problem.y = direct ? static_cast<float*>(e.y) + tile.m_begin * e.y_stride + tile.n_begin : reinterpret_cast<float*>(scratch);
  problem.y_stride = direct ? e.y_stride : kBinaryOutputs;
  if (!sums_wanted) {
    problem.a_scales = reinterpret_cast<const float*>(packed + layout.row_scales) + tile.m_begin;
    problem.w_scales = reinterpret_cast<const float*>(packed) + tile.n_begin;
  }
  binary_rows()[kIndex].run(problem, 0, rows, 0, (outputs + kBinaryPanel - 1) / kBinaryPanel);
  if (direct) return;
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t n = 0; n < outputs; n += 64)
      finish_row(e, tile.m_begin + m, tile.n_begin + n, static_cast<int>(std::min<std::int64_t>(64, outputs - n)),
                 reinterpret_cast<float*>(scratch) + m * kBinaryOutputs + n);
}

// ---- MSFP x MSFP ----

constexpr std::int64_t kMsfpRows = 512;  // a tile: the panel is unpacked once for so many rows

bool accepts_msfp(const MatmulProblem& p) {
  return p.w.layout == WeightLayout::kPanels && p.x.quantized && p.x.scheme.is_msfp && p.w.scheme.is_msfp && p.epilogue.out != DType::kI32;
}

int magnitude_bits(const Scheme& scheme) { return scheme.element.bits - 1; }

/// 2^(code - 127 - (m - 1)): the value of a mantissa's unit.
float unit_of(const Scheme& scheme, std::uint32_t code) {
  return decode(kE8m0, code) * std::bit_cast<float>(static_cast<std::uint32_t>(127 - (magnitude_bits(scheme) - 1)) << 23);
}

struct MsfpLayout {
  std::int64_t boxes, scales, sums, size;
};

MsfpLayout msfp_layout(const MatmulProblem& p) {
  MsfpLayout layout{};
  layout.boxes = panels::padded_k(p.k) / kMsfpBox;
  layout.scales = align64(p.m * layout.boxes * kMsfpBox);
  layout.sums = layout.scales + align64(p.m * layout.boxes * 4);
  layout.size = layout.sums + align64(p.m * layout.boxes * 4);
  return layout;
}

std::size_t msfp_packed_bytes(const MatmulProblem& p) { return static_cast<std::size_t>(msfp_layout(p).size); }

void msfp_begin(const MatmulProblem&, std::byte*) {}

void msfp_pack(const MatmulProblem& p, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  const MsfpLayout layout = msfp_layout(p);
  const int bits = p.x.scheme.element.bits, magnitude = magnitude_bits(p.x.scheme);
  for (std::int64_t m = m_begin; m < m_end; ++m) {
    auto* mantissas = reinterpret_cast<std::int8_t*>(packed) + m * layout.boxes * kMsfpBox;
    for (std::int64_t box = 0; box < layout.boxes; ++box) {
      std::int32_t sum = 0;
      for (std::int64_t k = box * kMsfpBox; k < (box + 1) * kMsfpBox; ++k) {
        const std::uint32_t code = k < p.k ? read_code(p.x.codes + static_cast<std::size_t>(m) * p.x.row_bytes, k, bits) : 0u;
        const std::int32_t value = static_cast<std::int32_t>(code & ((1u << magnitude) - 1u));
        mantissas[k] = static_cast<std::int8_t>((code >> magnitude) != 0 ? -value : value);
        sum += mantissas[k];
      }
      const bool exists = box * kMsfpBox < p.k;
      const std::int64_t cell = p.x.grid.grid_row(m) * p.x.grid.cols + box;
      reinterpret_cast<float*>(packed + layout.scales)[m * layout.boxes + box] =
          exists ? unit_of(p.x.scheme, load_scale_code(p.x.scales, p.x.scheme.scale, cell)) : 1.0f;
      reinterpret_cast<std::int32_t*>(packed + layout.sums)[m * layout.boxes + box] = sum;
    }
  }
}

/// Scratch: the panel's mantissas, its units, and the rows of y.
std::size_t msfp_scratch_bytes(const MatmulProblem& p) {
  const std::int64_t boxes = msfp_layout(p).boxes;
  return static_cast<std::size_t>((boxes * kMsfpBox + boxes * 4 + kMsfpRows * 4) * kMsfpOutputs);
}

template <std::size_t kIndex>
void msfp_tile(const MatmulProblem& p, const MatmulTile& tile, const std::byte* packed, std::byte* scratch) {
  const MsfpLayout layout = msfp_layout(p);
  const MsfpKernel& kernel = msfp_rows()[kIndex];
  const std::int64_t boxes = layout.boxes, groups = panels::padded_k(p.k) / panels::kGroup;
  const int stored_bits = panels::stored_bits(p.w.scheme.element);
  auto* w = reinterpret_cast<std::uint32_t*>(scratch);
  auto* units = reinterpret_cast<float*>(scratch + boxes * kMsfpBox * kMsfpOutputs);
  float* y = units + boxes * kMsfpOutputs;

  const auto* lanes = reinterpret_cast<const std::uint32_t*>(p.w.codes) + panels::lane_index(tile.n_begin, 0, p.k, stored_bits);
  kernel.unpack({lanes, groups, magnitude_bits(p.w.scheme), stored_bits}, w);
  const std::int64_t blocks = panels::k_blocks(p.w.grid, p.k);
  for (std::int64_t box = 0; box < boxes; ++box)
    for (std::int64_t n = 0; n < kMsfpOutputs; ++n)
      units[box * kMsfpOutputs + n] =
          unit_of(p.w.scheme,
                  load_scale_code(p.w.scales, p.w.scheme.scale, panels::scale_index(tile.n_begin + n, std::min(box, blocks - 1), blocks)));

  const std::int64_t rows = tile.m_end - tile.m_begin;
  const MsfpProblem problem{.boxes = boxes,
                            .a = reinterpret_cast<const std::int8_t*>(packed) + tile.m_begin * boxes * kMsfpBox,
                            .a_scales = reinterpret_cast<const float*>(packed + layout.scales) + tile.m_begin * boxes,
                            .a_sums = reinterpret_cast<const std::int32_t*>(packed + layout.sums) + tile.m_begin * boxes,
                            .w = w,
                            .w_scales = units,
                            .y = y};
  kernel.run(problem, 0, rows);
  for (std::int64_t m = 0; m < rows; ++m)
    finish_row(p.epilogue, tile.m_begin + m, tile.n_begin, static_cast<int>(std::min(kMsfpOutputs, tile.n_end - tile.n_begin)),
               y + m * kMsfpOutputs);
}

template <std::size_t kIndex>
void append_binary(std::vector<MatmulKernel>& rows) {
  if (kIndex >= binary_rows().size()) return;
  const BinaryKernel& kernel = binary_rows()[kIndex];
  rows.push_back({kernel.name, kernel.isa, "int1 activations and int1 weights in panels, one scale per row", accepts_binary, kBinaryRows,
                  kBinaryOutputs, binary_packed_bytes, binary_begin, binary_pack, binary_scratch_bytes, binary_tile<kIndex>});
}

template <std::size_t kIndex>
void append_msfp(std::vector<MatmulKernel>& rows) {
  if (kIndex >= msfp_rows().size()) return;
  const MsfpKernel& kernel = msfp_rows()[kIndex];
  rows.push_back({kernel.name, kernel.isa, "MSFP activations and MSFP weights in panels", accepts_msfp, kMsfpRows, kMsfpOutputs,
                  msfp_packed_bytes, msfp_begin, msfp_pack, msfp_scratch_bytes, msfp_tile<kIndex>});
}

}  // namespace

std::vector<MatmulKernel> special_matmul_rows() {
  std::vector<MatmulKernel> rows;
  append_binary<0>(rows);
  append_binary<1>(rows);
  append_msfp<0>(rows);
  append_msfp<1>(rows);
  return rows;
}

}  // namespace narrow::cpu
