#pragma once
/// What the tasks of float and of integer products have in common.

#include <bit>

#include "format/scale_rule.h"
#include "kernels/cpu/matmul_task.h"
#include "kernels/panels.h"
#include "kernels/storage.h"

namespace narrow::cpu {

constexpr std::int64_t align64(std::int64_t size) { return panels::round_up(size, 64); }

inline PanelScales panel_scales(const WeightView& w, std::int64_t k) {
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

inline std::int64_t panel_bytes(const MatmulProblem& problem) {
  return panels::padded_k(problem.k) / 8 * panels::stored_bits(problem.w.scheme.element) * panels::kLanes;
}

inline bool is_integer_product(const MatmulProblem& problem) {
  return problem.x.quantized && is_exact_integer(problem.x.scheme.element) && is_exact_integer(problem.w.scheme.element);
}

inline float x_scale(const ActivationView& x, std::int64_t row, std::int64_t block) {
  const std::int64_t cell = x.grid.whole_tensor ? 0 : x.grid.grid_row(row) * x.grid.cols + block;
  return effective_scale(x.scheme, load_scale_code(x.scales, x.scheme.scale, cell), x.outer_scale);
}

}  // namespace narrow::cpu
