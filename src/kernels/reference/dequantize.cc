/// The meaning of dequantize: one obvious loop. Never optimised.

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/quantize.h"
#include "kernels/storage.h"

namespace narrow::reference {
namespace {

bool accepts(const DequantizeProblem&) { return true; }

void run(const DequantizeProblem& problem, const Tile& tile) {
  const Scheme& scheme = problem.scheme;
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row)
    for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
      const std::int64_t cell = problem.grid.grid_row(row) * problem.grid.cols + problem.grid.grid_col(col);
      const float scale =
          scheme.has_scales() ? effective_scale(scheme, load_scale_code(problem.scales, scheme.scale, cell), problem.outer_scale) : 1.0f;
      const std::int32_t zero_point = scheme.asymmetric ? problem.zero_points[cell] : 0;
      const std::uint32_t code = read_code(problem.codes + static_cast<std::size_t>(row) * problem.row_bytes, col, scheme.element.bits);
      store_value(problem.y, problem.dtype, row * problem.cols + col, dequantize_element(scheme, code, scale, zero_point));
    }
}

}  // namespace

const DequantizeKernel kDequantize{"ref_dequantize", Isa::kScalar, accepts, run};

}  // namespace narrow::reference
