/// MSFP products on any device:  y = sum over boxes of 16, in order, float(sum_i a_i b_i) * 2^(ea + eb), as kernels/reference/msfp.cc has
/// it. Mapping:  a thread per element of D, tiles of 16 x 16 whose rows meet in the first-level cache.     Bound: integer arithmetic.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/msfp_product.h"
#include "kernels/cuda/product_finish.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTile = 16;

__device__ int code_at(const std::uint8_t* box, int bits, int i) {
  const std::uint32_t stored = bits == 8 ? box[i] : (box[i / 2] >> (i % 2 * 4)) & 15u;
  const int magnitude = static_cast<int>(stored & ((1u << (bits - 1)) - 1u));
  return (stored >> (bits - 1)) != 0 ? -magnitude : magnitude;
}
__device__ int exponent_at(const MsfpView& v, std::int64_t row, int box) {
  return static_cast<int>((v.exponents[box / 4 * v.exponent_rows() + row] >> (box % 4 * 8)) & 255u);
}

__global__ void __launch_bounds__(kTile* kTile) tiles(const MsfpProblem p) {
  const int tiles_n = (p.n + kTile - 1) / kTile, thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / tiles_n * kTile + thread / kTile,
            column = static_cast<int>(blockIdx.x) % tiles_n * kTile + thread % kTile;
  if (row >= p.m || column >= p.n) return;
  const std::uint8_t* a = p.a.codes + row * p.a.pitch();
  const std::uint8_t* b = p.b.codes + column * p.b.pitch();
  const int fraction_bits = (p.a.bits == 8 ? 6 : 2) + (p.b.bits == 8 ? 6 : 2);
  float total = 0.0f;
  for (int box = 0; box < p.a.depth / kMsfpBox; ++box, a += 2 * p.a.bits, b += 2 * p.b.bits) {
    const int ea = exponent_at(p.a, row, box), eb = exponent_at(p.b, column, box);
    if (ea == 0 || eb == 0) continue;
    int sum = 0;
    for (int i = 0; i < kMsfpBox; ++i) sum += code_at(a, p.a.bits, i) * code_at(b, p.b.bits, i);
    total += ldexpf(static_cast<float>(sum), ea + eb - 254 - fraction_bits);
  }
  finish_product(p.epilogue, p.d, total, row, column, p.n, row * p.d_pitch + column);
}

}  // namespace

int launch_msfp_product_any(const MsfpProblem& problem, Stream stream) {
  const std::int64_t rows = (problem.m + kTile - 1) / kTile, columns = (problem.n + kTile - 1) / kTile;
  return launch_kernel(tiles, rows * columns, kTile * kTile, stream, problem);
}

}  // namespace narrow::cuda
