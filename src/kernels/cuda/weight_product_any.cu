/// The product with weights in any scheme that runs on every device.
/// Mapping: 16 x 16 elements of y per thread block, one per thread; 32 columns of both operands at a time through shared memory, where each
///          weight is decoded once. Sums are fp32.
/// Bound:   arithmetic; far slower than the tensor cores. Meaning: reference/matmul.cc.

#include <algorithm>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_finish.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kSide = 16, kDepth = 32;

/// The value of a weight, without the row's factor where the weight is prepared.
__device__ float weight_at(const WeightView& w, const Placement& placement, int row, int column) {
  const Format& element = w.scheme.element;
  if (!w.is_prepared) {
    const std::uint32_t code = read_code(w.codes + row * w.row_bytes, column, element.bits);
    const std::int64_t cell = w.grid.grid_row(row) * w.grid.cols + w.grid.grid_col(column);
    const float outer = w.outer_scale != nullptr ? *w.outer_scale : 1.0f;
    const float scale = w.scheme.has_scales() ? effective_scale(w.scheme, load_scale_code(w.scales, w.scheme.scale, cell), outer) : 1.0f;
    return dequantize_element(w.scheme, code, scale, w.scheme.asymmetric ? w.zero_points[cell] : 0);
  }
  const WeightLayoutInfo& layout = w.layout;
  const std::uint32_t code = from_stored(layout, element, stored_code(layout, placement, w.chunks, row, column));
  const std::int64_t index = std::int64_t{row / kChunkRows} * layout.depth_chunks + column / kChunkDepth;
  const std::uint8_t* chunk = w.chunks + index * layout.chunk_bytes();
  const int at = layout.scale_index(row, column);
  float value = 0.0f;
  if (layout.has_zeros)
    value = static_cast<float>(static_cast<int>(code) - chunk[layout.code_bytes() + layout.scale_bytes() + at]);
  else
    value = decode(element, code);
  if (layout.kind == WeightKind::kFloat)
    value = ldexpf(value, element.bias - 15);  // the factor holds the power of two
  else if (element.is_integer())
    value = ldexpf(value, element.fraction_bits);
  return layout.scale == ChunkScale::kNone ? value : value * stored_scale(layout, chunk, at);
}

__global__ void __launch_bounds__(kSide* kSide) weight_product_any(const WeightProblem p, const Placement placement) {
  __shared__ float weights[kDepth][kSide + 1], tokens[kDepth][kSide + 1];
  const int thread = static_cast<int>(threadIdx.x), column = thread % kSide, row = thread / kSide;
  const int first_n = static_cast<int>(blockIdx.x) * kSide;
  for (int first_m = static_cast<int>(blockIdx.y) * kSide; first_m < p.m; first_m += static_cast<int>(gridDim.y) * kSide) {
    float sum = 0.0f;
    for (int k = 0; k < p.w.k; k += kDepth) {
      __syncthreads();
      for (int i = thread; i < kSide * kDepth; i += kSide * kSide) {
        const int side = i / kDepth, depth = i % kDepth;
        const bool inside = k + depth < p.w.k;
        weights[depth][side] = inside && first_n + side < p.w.n ? weight_at(p.w, placement, first_n + side, k + depth) : 0.0f;
        const std::int64_t from = p.order != nullptr && inside ? p.order[k + depth] : k + depth;
        tokens[depth][side] = inside && first_m + side < p.m ? cuda::load_value(p.x, p.x_type, (first_m + side) * p.x_pitch + from) : 0.0f;
      }
      __syncthreads();
      for (int depth = 0; depth < kDepth; ++depth) sum = __fmaf_rn(tokens[depth][row], weights[depth][column], sum);
    }
    if (first_m + row >= p.m || first_n + column >= p.w.n) continue;
    if (p.w.is_prepared) sum *= p.w.factors[first_n + column];
    finish_and_store(p.epilogue, sum, first_m + row, first_n + column, p.w.n, p.y, p.y_pitch);
  }
}

}  // namespace

int launch_weight_product_any(const WeightProblem& problem, Stream stream) {
  if (problem.m == 0 || problem.w.n == 0) return cudaSuccess;
  const bool placed = problem.w.is_prepared && problem.w.layout.kind != WeightKind::kDense;
  const Placement placement =
      placed ? make_placement(problem.w.layout.kind, problem.w.layout.bits, problem.w.layout.mantissa) : Placement{};
  const dim3 grid(static_cast<unsigned>((problem.w.n + kSide - 1) / kSide),
                  static_cast<unsigned>(std::min((problem.m + kSide - 1) / kSide, 65535)));
  weight_product_any<<<grid, kSide * kSide, 0, stream>>>(problem, placement);
  return cudaGetLastError();
}

}  // namespace narrow::cuda
