/// Products with the bits of the CPU's where both sum in fp64 (MatmulProblem::in_fp64 of kernels/matmul.h): products of two fp32 values are
/// exact there, sums show their order in the last bits of an fp64 alone, and are rounded once to fp32.
/// Mapping:  a warp has 16 outputs and kTiles times eight rows of x on the tensor cores' fp64, 16 kQuads columns at a time, of which a lane
///           reads neighbours: which column stands where is the same for both operands. Of few rows kSplits warps share outputs, columns in
///           turns.
/// Bound:    fp64 on tensor cores, a fifteenth of fp16's speed; of few rows conversions to fp64, 16 per clock and multiprocessor.

#include <type_traits>

#include "kernels/cuda/decoder/exact.h"
#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kOutputs = 16, kDepth = 16;

/// c[16, 8] += a[16, 16] * b[16, 8]; a: of row lane / 4 (even) and eight rows below (odd), columns lane % 4 + 4 * (i / 2); b: of column
/// lane / 4, rows lane % 4 + 4 i.
__device__ void multiply(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, "
      "{%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

/// Fours of neighbours of a row of k values, zeros beyond its end. kFours: rows are whole fours.
template <bool kFours, int kQuads>
__device__ void load_columns(const float* row, std::int64_t column, std::int64_t k, float4 (&values)[kQuads]) {
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const std::int64_t first = column + i * 4;
    if constexpr (kFours) {
      values[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (first < k) values[i] = *reinterpret_cast<const float4*>(row + first);
    } else {
      const auto at = [&](int j) { return first + j < k ? row[first + j] : 0.0f; };
      values[i] = {at(0), at(1), at(2), at(3)};
    }
  }
}

/// The same of fp8 codes, times their scale: all fours are in the row, or none.
template <int kQuads>
__device__ void load_codes(const ExactProductProblem& p, std::int64_t output, std::int64_t column, float4 (&values)[kQuads]) {
  using Words = std::conditional_t<kQuads == 4, uint4, uint2>;
  static_assert(sizeof(Words) == 4 * kQuads);
  Words words{};
  float scale = 0.0f;
  if (column < p.k) {
    words = __ldg(reinterpret_cast<const Words*>(p.codes + output * p.k + column));
    scale = __ldg(p.scales + (output >> p.scale_row_shift) * p.scale_pitch + (p.scale_pitch > 1 ? column / 128 : 0));
  }
  const auto two = [&](std::uint32_t pair) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
    return __half22float2(reinterpret_cast<const __half2&>(halves));
  };
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(&words)[i];
    const float2 a = two(word), b = two(word >> 16);
    values[i] = {__fmul_rn(a.x, scale), __fmul_rn(a.y, scale), __fmul_rn(b.x, scale), __fmul_rn(b.y, scale)};
  }
}

/// kQuads: fours of columns that a lane reads at a time.
template <int kTiles, int kWarps, int kSplits, int kQuads, bool kCodes, bool kFours>
__global__ void __launch_bounds__(kWarps * 32, kTiles == 1 ? 2 : 3) exact_product(const ExactProductProblem p) {
  __shared__ double parts[kSplits > 1 ? kWarps : 1][4 * kTiles][32];
  begin_after_earlier_kernels();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, split = warp % kSplits;
  const std::int64_t row_tiles = (p.rows + kTiles * 8 - 1) / (kTiles * 8), first_row = blockIdx.x % row_tiles * (kTiles * 8),
                     first = (blockIdx.x / row_tiles * (kWarps / kSplits) + warp / kSplits) * kOutputs + group;
  // Rows and outputs that are not there repeat the last one.
  const std::int64_t outputs[2] = {first < p.n ? first : p.n - 1, first + 8 < p.n ? first + 8 : p.n - 1};
  const auto x_row = [&](int tile) {
    const std::int64_t row = first_row + tile * 8 + group;
    return p.x + (row < p.rows ? row : p.rows - 1) * p.k;
  };
  double sums[kTiles][4] = {};
#pragma unroll 1
  for (std::int64_t base = split * kDepth * kQuads; base < p.k; base += kSplits * kDepth * kQuads) {
    const std::int64_t column = base + lane % 4 * 4 * kQuads;
    float4 w[2][kQuads];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kCodes)
        load_codes(p, outputs[i], column, w[i]);
      else
        load_columns<kFours>(p.w + outputs[i] * p.k, column, p.k, w[i]);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float4 x[kQuads];
      load_columns<kFours>(x_row(tile), column, p.k, x);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const double a[8] = {w[0][i].x, w[1][i].x, w[0][i].y, w[1][i].y, w[0][i].z, w[1][i].z, w[0][i].w, w[1][i].w};
        const double b[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        multiply(sums[tile], a, b);
      }
    }
  }
  if constexpr (kSplits > 1) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) parts[warp][i][lane] = sums[i / 4][i % 4];
    __syncthreads();
    if (split != 0) return;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      for (int other = 1; other < kSplits; ++other) sums[i / 4][i % 4] += parts[warp + other][i][lane];
  }
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) {
    const std::int64_t output = first + i % 4 / 2 * 8, row = first_row + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (output >= p.n || row >= p.rows) continue;
    float y = static_cast<float>(sums[i / 4][i % 4]);
    if (p.bias != nullptr) y = __fadd_rn(y, p.bias[output]);
    const std::int64_t to = row * p.pitch + output;
    if (p.residual != nullptr) y = __fadd_rn(y, p.residual[to]);
    p.y[to] = y;
  }
}

template <int kTiles, int kWarps, int kSplits, int kQuads, bool kCodes>
int launch(const ExactProductProblem& p, Stream stream) {
  const std::int64_t outputs = kOutputs * (kWarps / kSplits), rows = kTiles * 8;
  const std::int64_t blocks = (p.n + outputs - 1) / outputs * ((p.rows + rows - 1) / rows);
  const auto kernel = p.k % 4 == 0 ? exact_product<kTiles, kWarps, kSplits, kQuads, kCodes, true>
                                   : exact_product<kTiles, kWarps, kSplits, kQuads, false, false>;
  return launch_chained(kernel, blocks, kWarps * 32, 0, 1, stream, p);
}

}  // namespace

int launch_exact_product(const ExactProductProblem& problem, Stream stream) {
  if (problem.codes != nullptr)
    return problem.rows <= 8 ? launch<1, 8, 8, 4, true>(problem, stream) : launch<4, 4, 4, 2, true>(problem, stream);
  if (problem.rows <= 8) return launch<1, 8, 8, 4, false>(problem, stream);
  return problem.rows <= 64 ? launch<4, 4, 4, 2, false>(problem, stream) : launch<8, 4, 1, 1, false>(problem, stream);
}

}  // namespace narrow::cuda
